"""Who may use an endpoint and how often, in the words of Django REST framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

Classes = Sequence[type[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What ``as_endpoint()`` and its like take beside the fields of the agent.

    ``permission`` is a Django permission that is asked for in any case. ``None`` as classes
    means those of the site.
    """

    permission: str = ""
    authentication_classes: Classes | None = None
    permission_classes: Classes | None = None
    throttle_classes: Classes | None = None
    throttle_scope: str = ""

    def authentication(self) -> Classes:
        """Return what finds out who asks: the site's own choice, or a token or a session."""
        from mlango.serve.authentication import BearerAuthentication, SessionAuthentication

        ours = (BearerAuthentication, SessionAuthentication)
        return _chosen(self.authentication_classes, "DEFAULT_AUTHENTICATION_CLASSES", ours)

    def permissions(self) -> Classes:
        """Return who may ask: somebody who is logged in, and whom the site lets in."""
        from rest_framework.permissions import IsAuthenticated

        if self.permission_classes is not None:
            return self.permission_classes
        # A site that is open to everybody is not asked whether its agents are.
        return (IsAuthenticated, *_chosen(None, "DEFAULT_PERMISSION_CLASSES", ()))

    def throttles(self) -> Classes:
        """Return how often somebody may ask."""
        return _chosen(self.throttle_classes, "DEFAULT_THROTTLE_CLASSES", ())


NAMES = tuple(each.name for each in fields(Policy))


def parted(options: dict[str, Any]) -> tuple[Policy, dict[str, Any]]:
    """Return the policy that is among the arguments of ``as_endpoint()``, and the others."""
    policy = Policy(**{name: options[name] for name in NAMES if name in options})
    return policy, {name: value for name, value in options.items() if name not in NAMES}


def _chosen(given: Classes | None, setting: str, ours: Classes) -> Classes:
    """Return the classes given, else those that the site says in REST_FRAMEWORK, else ours."""
    from rest_framework.settings import api_settings

    if given is not None:
        return given
    # Not what the framework has where the site says nothing, which is open to everybody.
    return getattr(api_settings, setting) if setting in api_settings.user_settings else ours
