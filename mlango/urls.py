"""What a site serves beside its agents: ``path("", include("mlango.urls"))``."""

from django.urls import path

from mlango.serve.health import alive, ready

app_name = "mlango"

urlpatterns = [
    path("health", alive, name="health"),
    path("healthz", ready, name="ready"),
]
