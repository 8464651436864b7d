"""The settings of processes that work beside a test, on its database."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

DATABASES["default"]["NAME"] = os.environ["SITE_DATABASE"]
INSTALLED_APPS = [*INSTALLED_APPS, "tests.services"]
MLANGO = {"QUEUE": "celery", "LEASE_SECONDS": 3}
LOGGING_CONFIG = None
