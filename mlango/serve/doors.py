"""Who may open a socket of an agent, and speak over it: the same that its endpoints ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpRequest

from mlango.serve.failures import problem_of
from mlango.serve.gate import Endpoint
from mlango.serve.origins import check_origin

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.serve.policy import Policy


class Door:
    """Lets in who asks from this site, is logged in, and is permitted to."""

    def __init__(self, agent: Agent, policy: Policy) -> None:
        self._policy = policy
        self._options: dict[str, Any] = {
            "agent": agent,
            "needed": tuple(each for each in (agent._meta.permission, policy.permission) if each),
            "http_method_names": ["get"],
            "authentication_classes": policy.authentication(),
            "permission_classes": policy.permissions(),
            "throttle_scope": policy.throttle_scope,
        }

    def admit(self, request: HttpRequest, *, is_throttled: bool) -> Any:
        """Return who asks; raise a Problem unless he may. Asks the database."""
        # What a client takes as an answer says nothing of a socket.
        request.META.pop("HTTP_ACCEPT", None)
        throttles = self._policy.throttles() if is_throttled else ()
        view = Endpoint(**self._options, throttle_classes=throttles)
        view.setup(request)
        try:
            check_origin(request)
            return view.admit(request)
        except Exception as error:
            raise problem_of(error, view) from error
