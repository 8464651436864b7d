"""The ASGI application."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django_application = get_asgi_application()

from mlango.serve.asgi import Guard  # noqa: E402 - needs the settings

application = Guard(django_application)
