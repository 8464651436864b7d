"""The settings of web servers that work beside a test, on its database."""

from tests.services.site import *  # noqa: F403

ROOT_URLCONF = "tests.services.urls"
MLANGO = {"DEFAULT_PROVIDER": "echo", "STREAM_SEND_TIMEOUT": 1, "LEASE_SECONDS": 3}
LOGGING_CONFIG = "logging.config.dictConfig"
