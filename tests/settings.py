"""Settings of the test project."""

import os
import tempfile
from pathlib import Path

# Each process has a database of its own, so that two test runs never meet.
_NAME = f"mlango_{os.getpid()}"
_IS_OTHER = os.environ.get("MLANGO_TEST_SITE") == "other"

# A file and not memory, so that every thread sees the same rows.
_SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "ATOMIC_REQUESTS": _IS_OTHER,
    "NAME": Path(tempfile.gettempdir()) / f"{_NAME}.sqlite3",
    "TEST": {"NAME": str(Path(tempfile.gettempdir()) / f"test_{_NAME}.sqlite3")},
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    },
}
_POSTGRES = {
    "ENGINE": "django.db.backends.postgresql",
    "ATOMIC_REQUESTS": _IS_OTHER,
    "NAME": os.environ.get("PGDATABASE", "postgres"),
    "HOST": os.environ.get("PGHOST", "127.0.0.1"),
    "PORT": os.environ.get("PGPORT", ""),
    "USER": os.environ.get("PGUSER", "postgres"),
    "PASSWORD": os.environ.get("PGPASSWORD", ""),
    "TEST": {"NAME": f"test_{_NAME}"},
}
DATABASES = {
    "default": {"sqlite": _SQLITE, "postgres": _POSTGRES}[
        os.environ.get("MLANGO_TEST_DATABASE", "sqlite")
    ],
    # For sites that keep mlango's rows apart; made only for the tests that ask for it.
    "agents": _SQLITE
    | {
        "ATOMIC_REQUESTS": False,
        "NAME": Path(tempfile.gettempdir()) / f"{_NAME}_agents.sqlite3",
        "TEST": {"NAME": str(Path(tempfile.gettempdir()) / f"test_{_NAME}_agents.sqlite3")},
    },
}

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "mlango",
    "tests.apps.support",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

MLANGO = {"DEFAULT_PROVIDER": "echo"}

# A site that chose otherwise wherever Django lets it: its users have keys of another kind, its
# times have no zone, in a place half a day from UTC, and each of its requests is a transaction.
if _IS_OTHER:
    INSTALLED_APPS.append("tests.apps.people")
    AUTH_USER_MODEL = "people.Person"
    USE_TZ = False
    TIME_ZONE = "Pacific/Auckland"
