"""The ASGI application of a site whose agents speak."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.services.website")
django_application = get_asgi_application()

from channels.routing import ProtocolTypeRouter  # noqa: E402
from django.urls import path  # noqa: E402

from mlango.serve.asgi import Guard  # noqa: E402
from mlango.serve.direct import Direct  # noqa: E402
from mlango.serve.routing import websockets  # noqa: E402
from tests.services.agents import Counter, Reciter, Shouter, Speaker  # noqa: E402

sockets = websockets(
    [
        path("ws/speaker/", Speaker.as_consumer()),
        path("ws/counter/", Counter.as_consumer()),
        path("ws/shouter/", Shouter.as_consumer()),
        path("ws/reciter/", Reciter.as_consumer()),
    ]
)
application = Guard(
    ProtocolTypeRouter({"http": Direct(django_application), "websocket": sockets}),
)
