"""Programs that end in the middle of a stream."""

import os
import subprocess
import sys

PROGRAM = """
import django
django.setup()
from mlango.agents import Agent

class Asked(Agent):
    class Meta:
        app_label = "exits"
        tracing = False

stream = Asked().stream("a b c")
print(next(stream).kind)
"""


def test_a_program_ends_with_a_stream_that_nobody_read_to_its_end():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,  # it took for ever
    )

    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
