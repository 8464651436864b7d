"""Another process that runs in the same session; ``test_turns`` starts two of them."""

import os
import sys
import time
from pathlib import Path

import django
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
settings.DATABASES["default"]["NAME"] = os.environ["SESSION_DATABASE"]
django.setup()


def wait_for_the_other():
    place = Path(sys.argv[1]).parent
    (place / f"ready-{os.getpid()}").touch()
    deadline = time.monotonic() + 60
    while len(list(place.glob("ready-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)


def main(log):
    from mlango.core.memory import SessionKey
    from mlango.core.provider import Completion, Provider
    from mlango.runtime.sessions import SessionTurn
    from tests.helpers import finish, new_run

    class Logging(Provider):
        name = "logging"

        def complete(self, **request):
            os.write(log, b"begin\n")
            time.sleep(0.005)  # long enough for the other process to come between
            os.write(log, b"end\n")
            return Completion("Done.")

    wait_for_the_other()
    key = SessionKey("shop.Support", "", "s1")
    for _ in range(5):
        run = finish(new_run(Logging(), session_id="s1", turn=SessionTurn(key)))
        assert run.status == "finished", run.exception


main(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND))
