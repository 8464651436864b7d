"""The ASGI application."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django_application = get_asgi_application()  # first: it loads the apps

from channels.routing import ProtocolTypeRouter  # noqa: E402
from django.urls import path  # noqa: E402
from support.agents import Support  # noqa: E402

from mlango.serve.asgi import Guard  # noqa: E402
from mlango.serve.direct import Direct  # noqa: E402
from mlango.serve.routing import websockets  # noqa: E402

sockets = websockets([path("ws/support/", Support.as_consumer())])
application = Guard(
    ProtocolTypeRouter({"http": Direct(django_application), "websocket": sockets}),
)
