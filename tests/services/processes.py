"""Other processes, for tests: wait for what they do, and end them."""

import os
import signal
import time

PATIENCE = 90  # seconds until a process that does not do its work is given up


def kill(process):
    """End a process and those that it has forked, as a power cut does."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def until(condition, seconds=PATIENCE):
    """Wait for another process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "The other process did not do its work."
        time.sleep(0.05)
