"""Every provider that litellm knows. Only this module imports litellm, at the first call."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from typing import Any

from mlango.agents.providers import connections
from mlango.agents.providers.assembler import Assembler
from mlango.agents.providers.failures import refusal, refused_option
from mlango.agents.providers.metering import estimate
from mlango.agents.providers.openai_compatible import effort as effort_of
from mlango.agents.providers.sse import Answer
from mlango.agents.providers.unsupported import Unsupported
from mlango.agents.providers.wire import Encoder
from mlango.conf import settings
from mlango.core.provider import Completion, Delta, Message, Provider
from mlango.core.threads import in_pool
from mlango.core.tools import ToolSchemas
from mlango.core.usage import Usage
from mlango.exceptions import (
    AuthenticationFailed,
    ContentFiltered,
    ContextLengthExceeded,
    InvalidRequest,
    MalformedResponse,
    ProviderError,
    ProviderUnavailable,
)

# Without these, importing litellm loads a price map and headers from the network, reads the
# working directory's .env into the environment, and logs requests; and a model that repeats
# itself ends in an error.
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "REPEATED_STREAMING_CHUNK_LIMIT": "1000000",
}
LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
TIMEOUT = 3600.0  # the run's own clock watches the answer; litellm's own default is longer
REMOVABLE = ("temperature", "top_p", "top_k", "stop", "reasoning_effort", "thinking")
# Options that litellm's table of models can tell about; for a model it does not know, all pass.
CHECKED = (
    "temperature",
    "top_p",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "reasoning_effort",
    "verbosity",
    "parallel_tool_calls",
)


class LiteLLMProvider(Provider):
    """Asks any model by litellm's name for it: ``provider/model``.

    ``prefix`` is put before the model's name. The key comes from ``api_key``, or from the
    environment variable that litellm reads for the provider. ``options`` are added to every
    call of ``litellm.acompletion``.
    """

    name = "litellm"
    requires = ("litellm",)
    needs_model = True

    def __init__(
        self,
        *,
        prefix: str = "",
        api_base: str = "",
        api_key: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.prefix = prefix
        self._fixed = dict(options or {})
        if api_base:
            self._fixed["api_base"] = api_base
        if api_key:
            self._fixed["api_key"] = api_key
        self._encoder = Encoder()
        self._unsupported = Unsupported()

    async def astream(
        self,
        *,
        model: str,
        messages: list[Message],
        system: str = "",
        tools: list[dict[str, Any]] | None = None,
        max_tokens: int = 4096,
        **options: Any,
    ) -> AsyncGenerator[Delta]:
        def estimated(written: int) -> Usage:
            return estimate(messages, system, tools, written)

        name = model if model.startswith(self.prefix) else f"{self.prefix}{model}"
        litellm = await ready()
        request = {
            "messages": self._messages(name, messages, system),
            **self._tools(name, tools),
            "max_tokens": max_tokens,
            **self._options(name, options),
        }
        assembler = Assembler()
        stream = await self._ask(litellm, name, request)
        async with aclosing(stream):
            if (whole := unstreamed(stream)) is not None:
                answer = await self._read(whole, name)
                assembler = answer.assembler
                for delta in answer.end():
                    yield delta
            while (chunk := await self._next(stream, name, assembler)) is not None:
                for delta in assembler.feed(plain(chunk)):
                    yield delta
        yield _counted(assembler.completion(self.name, name, estimated), stream)

    async def aclose(self) -> None:
        """Close litellm's clients, which all its providers of this process share."""
        if "litellm" not in sys.modules:
            return
        litellm = loaded()
        await litellm.close_litellm_async_clients()
        litellm.in_memory_llm_clients_cache.flush_cache()  # it still holds the closed ones

    # -- the request --------------------------------------------------------------------------

    def _messages(self, model: str, messages: list[Message], system: str) -> list[Message]:
        """Return the messages as copies: litellm changes what it is given."""
        encoded = self._encoder.encode(messages, self.name, model)
        copied: list[Message] = json.loads(b"[" + encoded + b"]")
        return [{"role": "system", "content": system}, *copied] if system else copied

    def _tools(self, model: str, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        if not tools:
            return {}
        schemas = tools if isinstance(tools, ToolSchemas) else ToolSchemas(tools)
        compact = settings.COMPACT_TOOL_SCHEMAS
        dialect = "gemini" if "gemini" in model else "openai"
        return {"tools": json.loads(schemas.adapt(dialect, compact=compact).encoded)}

    def _options(self, model: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the options that the model takes, by litellm's names."""
        thinking, effort = given.pop("thinking", None), given.pop("effort", None)
        options = {
            "temperature": given.pop("temperature", None),
            "stop": given.pop("stop_sequences", None),
            "reasoning_effort": effort_of(thinking, effort),
            **given,
        }
        supported = supported_options(model)
        if thinking == "adaptive" and not effort and "thinking" in supported:
            options["thinking"] = {"type": "adaptive"}
        for option in [name for name, value in options.items() if value is not None]:
            if option in CHECKED and option not in supported:
                self._unsupported.add(self.name, model, option)
        left_out = self._unsupported.of(model)
        return {k: v for k, v in options.items() if v is not None and k not in left_out}

    async def _ask(self, litellm: Any, model: str, request: dict[str, Any]) -> Any:
        """Return the stream of the answer; ask again without what the model does not take."""
        while True:
            failed = None
            try:
                return await litellm.acompletion(
                    model=model,
                    stream=True,
                    stream_options={"include_usage": True},
                    max_retries=0,
                    timeout=TIMEOUT,
                    **request,
                    **self._fixed,
                )
            except errors() as error:
                option = refused_option(str(error), request, REMOVABLE)
                failed = None if option else self._failure(error, model)
            if failed:
                raise failed
            self._unsupported.add(self.name, model, option)
            del request[option]

    async def _read(self, response: Any, model: str) -> Answer:
        """Return the answer of a server that does not stream, of which litellm makes nothing."""
        answer = Answer(self.name, "")
        try:
            data = await response.aread()
        except errors() as error:
            failed = self._failure(error, model)
        else:
            list(answer.take(data))
            return answer
        raise failed

    async def _next(self, stream: Any, model: str, assembler: Assembler) -> Any:
        """Return the next chunk, None at the end."""
        try:
            return await anext(stream, None)
        except errors() as error:
            failed = self._failure(error, model, assembler.text)
        raise failed

    # -- errors -------------------------------------------------------------------------------

    def _failure(self, error: Any, model: str, text: str = "") -> ProviderError:
        """Return litellm's error in our words; its own may hold the key and the prompt."""
        if type(error).__name__ == "MidStreamFallbackError":
            return self._broken_off(error, text)
        written, status = str(error), getattr(error, "status_code", None)
        kind = next((KINDS[c.__name__] for c in type(error).__mro__ if c.__name__ in KINDS), None)
        if kind is AuthenticationFailed or "credentials" in written:
            missing = [] if "api_key" in self._fixed else missing_keys(model)
            if missing:
                return self._without_key(missing)
        if "LLM Provider NOT provided" in written:
            return InvalidRequest(
                f"The provider {self.name!r} knows no model {model!r}. "
                f"Write it as 'provider/model'.",
                provider=self.name,
            )
        if not isinstance(status, int) or "Connection error" in written:
            return ProviderUnavailable(
                f"The provider {self.name!r} cannot be reached ({type(error).__name__}).",
                provider=self.name,
            )
        found = refusal(self.name, status, _answer(error), headers_of(error), text=text)
        if kind in (ContextLengthExceeded, ContentFiltered):
            return kind(str(found), provider=self.name, status=status, text=text)
        return found

    def _without_key(self, missing: list[str]) -> ProviderError:
        return AuthenticationFailed(
            f"The provider {self.name!r} has no key. "
            f"Set the environment variable {' or '.join(missing)}.",
            provider=self.name,
        )

    def _broken_off(self, error: Any, text: str) -> ProviderError:
        cause = getattr(error, "original_exception", None)
        if cause is not None and getattr(cause, "status_code", 500) != 500:
            return refusal(
                self.name, cause.status_code, _answer(cause), headers_of(cause), text=text
            )
        return MalformedResponse(
            f"The stream of the provider {self.name!r} broke off.",
            provider=self.name,
            text=text,
        )


KINDS: dict[str, type[ProviderError]] = {
    "ContextWindowExceededError": ContextLengthExceeded,
    "ContentPolicyViolationError": ContentFiltered,
    "AuthenticationError": AuthenticationFailed,
}


def _answer(error: Any) -> Any:
    """Return what the provider wrote, only to tell what kind of error it is."""
    body = getattr(error, "body", None)
    return {"error": body} if isinstance(body, dict) else str(error)


def headers_of(error: Any) -> dict[str, str]:
    """Return the headers of a failed response, from the several places that litellm has."""
    places = [
        getattr(error, "headers", None),
        getattr(getattr(error, "response", None), "headers", None),
        getattr(error, "litellm_response_headers", None),
    ]
    return {name: value for headers in places if headers for name, value in headers.items()}


async def ready() -> Any:
    """Return litellm; its import takes seconds, during which the event loop goes on."""
    litellm = loaded() if loaded.cache_info().currsize else await in_pool(loaded)
    await connections.close_with_loop(close_clients)
    return litellm


class LoopClient:
    """Stands for the client of the running loop.

    litellm asks Anthropic, and others, by one client for all loops: where one begins to use
    it, the connections of another are closed, in the middle of an answer.
    """

    def __getattr__(self, name: str) -> Any:
        from litellm.llms.custom_httpx.http_handler import (  # type: ignore[import-untyped,unused-ignore]
            get_async_httpx_client,
        )

        return getattr(get_async_httpx_client("mlango", {"timeout": TIMEOUT}), name)


async def close_clients() -> None:
    """Close the clients of the running loop, which litellm keeps until there are two hundred."""
    kept = loaded().in_memory_llm_clients_cache
    of_loop = kept.update_cache_key_with_event_loop("")
    for key in [key for key in kept.cache_dict if key.endswith(of_loop)]:
        await kept.cache_dict[key].close()
        kept.delete_cache(key)


@cache
def loaded() -> Any:
    """Import litellm, quietly and without a look at the network."""
    chosen = "LITELLM_LOG" in os.environ
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():  # it changes the filters of the whole process
        warnings.simplefilter("ignore")
        import litellm  # type: ignore[import-untyped,unused-ignore]
    # Pydantic's words about parts that litellm imports only with the first call.
    warnings.filterwarnings("ignore", ".*`ReadOnly` qualifier", UserWarning, "pydantic")
    litellm.suppress_debug_info = True
    stand_in: Any = LoopClient()
    litellm.module_level_aclient = stand_in
    if not chosen:
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


@cache
def errors() -> tuple[type[Exception], ...]:
    """Return what litellm raises when a call fails."""
    import httpx
    import openai

    loaded()
    return (openai.OpenAIError, httpx.HTTPError, OSError, ValueError)


@cache
def supported_options(model: str) -> frozenset[str]:
    """Return the options of OpenAI that a model takes."""
    try:
        return frozenset(loaded().get_supported_openai_params(model=model) or CHECKED)
    except errors():
        return frozenset(CHECKED)


def unstreamed(stream: Any) -> Any:
    """Return the response that holds a whole answer; None where there is a stream."""
    import openai

    source = getattr(stream, "completion_stream", None)
    if not isinstance(source, openai.AsyncStream):
        return None
    kind = source.response.headers.get("content-type", "")
    return source.response if kind.startswith("application/json") else None


def missing_keys(model: str) -> list[str]:
    """Return the environment variables that a model needs and that are not set."""
    try:
        return list(loaded().validate_environment(model=model)["missing_keys"])
    except errors():
        return []


def plain(chunk: Any) -> dict[str, Any]:
    """Return a chunk of litellm as a dict. Its own ``model_dump`` takes ten times as long."""
    usage = getattr(chunk, "usage", None)
    result: dict[str, Any] = {
        "model": chunk.model,
        "usage": usage.model_dump(exclude_none=True) if usage else None,
    }
    for choice in chunk.choices[:1]:
        delta = choice.delta
        fields = {**vars(delta), **(delta.model_extra or {})}
        kept = {name: value for name, value in fields.items() if value is not None}
        if len(kept) > 1 or "content" not in kept:
            kept = _more(kept)
        result["choices"] = [{"delta": kept, "finish_reason": choice.finish_reason}]
    return result


def _more(delta: dict[str, Any]) -> dict[str, Any]:
    """Return a delta that holds more than text, with its objects as dicts."""
    for name in ("tool_calls", "function_call"):
        if name in delta:
            delta[name] = _dumped(delta[name])
    fields = delta.pop("provider_specific_fields", None)
    if isinstance(fields, dict):  # it repeats what has its own place
        if "stop_reason" in fields:  # for which litellm has no word of its own
            delta["stop_reason"] = fields["stop_reason"]
        fields = {name: value for name, value in fields.items() if name not in delta}
        if fields:
            delta["provider_specific_fields"] = fields
    return delta


def _dumped(value: Any) -> Any:
    if isinstance(value, list):
        return [_dumped(item) for item in value]
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else value


def _counted(completion: Completion, stream: Any) -> Completion:
    """Return the answer with its usage marked as a guess where litellm made it up."""
    seen = getattr(stream, "chunks", None)
    if seen is None or any(getattr(chunk, "usage", None) for chunk in seen):
        return completion
    return replace(completion, usage=replace(completion.usage, estimated=True))
