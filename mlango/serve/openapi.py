"""The OpenAPI document of the endpoints, written by drf-spectacular."""

from __future__ import annotations

from copy import deepcopy
from http import HTTPStatus
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.plumbing import ResolvedComponent, build_parameter_type
from drf_spectacular.utils import OpenApiParameter

from mlango.serve.operations import ALWAYS, COMPONENTS, OPERATIONS, PROBLEM, UUID, Operation

PATH: Any = OpenApiParameter.PATH
QUERY: Any = OpenApiParameter.QUERY
HEADER: Any = OpenApiParameter.HEADER
IDS = ("trace", "artifact")


def described(base: type[Any], view: Any) -> Any:
    """Return what describes an endpoint, over the class that the site describes views with."""
    schema = type("EndpointSchema", (Described, base), {})()
    schema.view = view
    return schema


class Described:
    """Says of an endpoint what OPERATIONS have of it; the rest is the class behind."""

    view: Any
    registry: Any
    method: str
    path: str

    @property
    def operation(self) -> Operation | None:
        return OPERATIONS.get((self.view.kind, self.method))

    def is_excluded(self) -> bool:
        return self.operation is None

    def get_operation(self, *args: Any) -> Any:
        operation = super().get_operation(*args)  # type: ignore[misc]
        if operation is not None:
            for name, schema in COMPONENTS.items():
                self.registry.register_on_missing(_component(name, schema))
        # Hooks of the site, and of drf-spectacular itself, change what they are given.
        return deepcopy(operation)

    def get_operation_id(self) -> str:
        words = [word.replace("-", "_") for word in self._tokenize_path()]  # type: ignore[attr-defined]
        verb = self._known.verb
        return "_".join(words if words[-1:] == [verb] else [*words, verb])

    def get_summary(self) -> str:
        return self._known.summary

    def get_description(self) -> str:
        return "\n\n".join(filter(None, [self.view.description, self._known.description]))

    def get_tags(self) -> list[str]:
        return [self.view.agent._meta.label if self.view.agent else "runs"]

    def _get_parameters(self) -> list[Any]:
        known = self._known
        path = [(name, PATH, UUID, True) for name in IDS if f"{{{name}}}" in self.path]
        query = [(name, QUERY, schema, False) for name, schema in known.query.items()]
        headers = [(name, HEADER, schema, False) for name, schema in known.headers.items()]
        others = [each for each in self._path_parameters() if each["name"] not in IDS]
        ours = [
            build_parameter_type(name=name, location=where, schema=schema, required=needed)
            for name, where, schema, needed in (*path, *query, *headers)
        ]
        return [*others, *ours]

    def _path_parameters(self) -> list[Any]:
        import uritemplate

        variables = uritemplate.variables(self.path)
        return list(self._resolve_path_parameters(variables))  # type: ignore[attr-defined]

    def _get_request_body(self, direction: str = "request") -> Any:
        known = self._known
        if not known.takes:
            return None
        example = {} if known.example is None else {"example": known.example}
        content = {kind: {"schema": schema, **example} for kind, schema in known.takes.items()}
        return {"content": content, "required": known.needs_body}

    def _get_response_bodies(self, direction: str = "response") -> Any:
        known = self._known
        example = {} if known.example_answer is None else {"example": known.example_answer}
        answers = {kind: {"schema": schema, **example} for kind, schema in known.answers.items()}
        problems = {kind: {"schema": schema} for kind, schema in PROBLEM.items()}
        return {
            str(known.status): {"content": answers, "description": known.summary},
            **{
                str(status): {"content": problems, "description": HTTPStatus(status).phrase}
                for status in sorted({*ALWAYS, *known.problems})
            },
        }

    @property
    def _known(self) -> Operation:
        operation = self.operation
        assert operation is not None, "An excluded view is not described."
        return operation


def _component(name: str, schema: dict[str, Any]) -> ResolvedComponent:
    return ResolvedComponent(  # type: ignore[no-untyped-call]
        name=name, type=ResolvedComponent.SCHEMA, schema=deepcopy(schema), object=f"mlango.{name}"
    )


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The tokens of MLANGO["API_BEARER_TOKENS"]."""

    target_class = "mlango.serve.authentication.BearerAuthentication"
    name = "bearerAuth"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The session of a user; a POST needs the header X-CSRFToken as well."""

    target_class = "mlango.serve.authentication.SessionAuthentication"
    name = "cookieAuth"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        from django.conf import settings

        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}
