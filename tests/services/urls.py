"""The URLs of a site whose agents speak."""

from mlango.serve import include, path
from tests.services.agents import Counter, Reciter, Shouter, Speaker

urlpatterns = [
    path("speaker/", include(Speaker.urls)),
    path("counter/", include(Counter.urls)),
    path("shouter/", include(Shouter.urls)),
    path("reciter/", include(Reciter.urls)),
    path("", include("mlango.urls")),
]
