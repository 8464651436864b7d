"""The Django app ``mlango``."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class MlangoConfig(AppConfig):
    """Finds the site's agents when Django starts."""

    name = "mlango"
    verbose_name = _("Agents")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from mlango import checks  # noqa: F401 - registers the system checks
        from mlango.agents import checks as agents  # noqa: F401 - and these
        from mlango.agents.traces import find_trace
        from mlango.core.run import AgentRun
        from mlango.runtime.registry import registry
        from mlango.serve import checks as serving  # noqa: F401 - and these
        from mlango.serve import deployment  # noqa: F401 - and these

        AgentRun.find_trace = staticmethod(find_trace)
        registry.discover()
