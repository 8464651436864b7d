"""A process that reserves of a quota and waits for its model; ``test_quotas`` kills it."""

import os
import threading

import django
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
settings.DATABASES["default"]["NAME"] = os.environ["QUOTA_DATABASE"]
django.setup()


def main():
    from mlango.core.provider import Provider
    from tests.control.test_quotas import Desk

    class Hanging(Provider):
        name = "hanging"
        offline = True

        def complete(self, **request):
            print("asked", flush=True)  # noqa: T201 - this is how the test is told
            threading.Event().wait()

    Desk().run("hi", provider=Hanging())


main()
