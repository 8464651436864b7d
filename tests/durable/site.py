"""The settings of processes that work beside a test, on its database."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["NAME"] = os.environ["SITE_DATABASE"]
LOGGING_CONFIG = None
