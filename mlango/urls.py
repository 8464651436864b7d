"""What a site serves beside its agents: ``path("", include("mlango.urls"))``."""

from django.urls import path

from mlango.serve import approvals
from mlango.serve.health import alive, ready
from mlango.serve.policy import Policy
from mlango.serve.urls import run_patterns

app_name = "mlango"

urlpatterns = [
    path("health", alive, name="health"),
    path("healthz", ready, name="ready"),
    *run_patterns(None, Policy()),
    path("approvals/", approvals.endpoint(None, Policy()), name="approvals"),
]
