"""OpenAI's chat completions over plain HTTP: OpenAI, OpenRouter, Ollama, vLLM, llama.cpp, …"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mlango.agents.providers import connections
from mlango.agents.providers.failures import refusal, refused_option
from mlango.agents.providers.metering import estimate
from mlango.agents.providers.sse import Answer
from mlango.agents.providers.unsupported import Unsupported
from mlango.agents.providers.wire import Encoder, encode
from mlango.conf import settings
from mlango.core.dialects import DIALECTS
from mlango.core.provider import Delta, Message, Provider
from mlango.core.tools import ToolSchemas
from mlango.core.usage import Usage
from mlango.exceptions import (
    AuthenticationFailed,
    InvalidRequest,
    MalformedResponse,
    Misconfigured,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    did_you_mean,
)

if TYPE_CHECKING:
    import aiohttp

# Models of OpenAI that think refuse the older name.
COMPLETION_TOKENS = re.compile(r"(o\d|gpt-[5-9])")
# What a server may not know: left out once it said so.
REMOVABLE = (
    "stream_options",
    "reasoning_effort",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "stop",
    "parallel_tool_calls",
)
JSON = "application/json"
LARGE = 1024 * 1024
DRAIN_TIMEOUT = 0.1


class OpenAICompatibleProvider(Provider):
    """Speaks to any server that has OpenAI's ``/chat/completions``.

    ``base_url`` ends before that path. The key is ``api_key``, or at each call what the
    environment variable ``api_key_env`` holds. ``headers`` and ``extra_body`` are added to
    every request. ``dialect`` names the JSON Schema that the model reads, and
    ``max_tokens_field`` is ``max_tokens`` or ``max_completion_tokens`` where the name of the
    model does not tell.
    """

    name = "openai_compatible"
    requires = ("aiohttp",)
    needs_model = True

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        api_key_env: str = "",
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        dialect: str = "openai",
        max_tokens_field: str = "",
    ) -> None:
        if not re.match(r"https?://[^/]", base_url):
            raise Misconfigured(f"base_url must begin with http:// or https://, not {base_url!r}.")
        if dialect not in DIALECTS:
            raise Misconfigured(
                f"There is no dialect {dialect!r}.{did_you_mean(dialect, DIALECTS)} "
                f"Dialects are: {', '.join(DIALECTS)}."
            )
        self.base_url = base_url.rstrip("/")
        self.api_key_env = api_key_env
        self.dialect = dialect
        self.max_tokens_field = max_tokens_field
        self.extra_body = dict(extra_body or {})
        self._headers = dict(headers or {})
        self._api_key = api_key
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

        head = {**self._options(model, max_tokens, options), **self.extra_body}
        tail = self._tail(model, messages, system, tools)
        answer = Answer(self.name, self._key_name())
        async with await self._ask(model, head, tail) as response:
            while data := await self._more(response, answer):
                for delta in answer.take(data):
                    yield delta
            for delta in answer.end():
                yield delta
        yield answer.assembler.completion(self.name, model, estimated)

    async def aclose(self) -> None:
        await connections.close()

    # -- the request --------------------------------------------------------------------------

    def _options(self, model: str, max_tokens: int, given: dict[str, Any]) -> dict[str, Any]:
        """Return the request but for the messages and the tools."""
        unsupported = self._unsupported.of(model)
        field = self.max_tokens_field or _max_tokens_field(model)
        if "max_tokens" in unsupported:
            field = "max_completion_tokens"
        options = {
            "stream_options": {"include_usage": True},
            "temperature": given.pop("temperature", None),
            "stop": given.pop("stop_sequences", None),
            "reasoning_effort": effort(given.pop("thinking", None), given.pop("effort", None)),
            **given,
            field: max_tokens,
        }
        kept = {k: v for k, v in options.items() if v is not None and k not in unsupported}
        return {"model": model, "stream": True, **kept}

    def _tail(
        self,
        model: str,
        messages: list[Message],
        system: str,
        tools: list[dict[str, Any]] | None,
    ) -> list[bytes | bytearray]:
        """Return the tools and the messages, encoded."""
        pieces: list[bytes | bytearray] = []
        if tools:
            schemas = tools if isinstance(tools, ToolSchemas) else ToolSchemas(tools)
            compact = settings.COMPACT_TOOL_SCHEMAS
            pieces += [b',"tools":', schemas.adapt(self.dialect, compact=compact).encoded]
        pieces.append(b',"messages":[')
        if system:
            pieces += [encode({"role": "system", "content": system}), b"," if messages else b""]
        return [*pieces, self._encoder.encode(messages, self.name, model), b"]}"]

    async def _ask(
        self, model: str, head: dict[str, Any], tail: list[bytes | bytearray]
    ) -> aiohttp.ClientResponse:
        """Send the request, again without what the server says it does not know."""
        while True:
            response = await self._post(b"".join((encode(head)[:-1], *tail)))
            if response.status == 200:
                return response
            async with response:
                answer = await _document(response)
            option = refused_option(answer, head, REMOVABLE) if response.status < 500 else ""
            if not option:
                raise refusal(
                    self.name, response.status, answer, response.headers, key=self._key_name()
                )
            self._unsupported.add(self.name, model, option)
            value = head.pop(option)
            if option == "max_tokens":
                head["max_completion_tokens"] = value

    async def _post(self, body: bytes) -> aiohttp.ClientResponse:
        import aiohttp  # see connections.py

        session = await connections.session()
        failed: ProviderError
        try:
            return await session.post(
                f"{self.base_url}/chat/completions",
                data=_payload(body),
                # Not a variable of this function: a traceback would show it.
                headers=self._request_headers(),
                allow_redirects=False,
            )
        except TimeoutError:
            failed = ProviderTimeout(
                f"The provider {self.name!r} did not accept a connection in time.",
                provider=self.name,
            )
        except aiohttp.ClientError as error:
            failed = ProviderUnavailable(
                f"The provider {self.name!r} cannot be reached ({type(error).__name__}). "
                f"Check that it runs, and its base_url.",
                provider=self.name,
            )
        except ValueError:
            failed = InvalidRequest(
                f"The provider {self.name!r} has an address or headers that cannot be sent.",
                provider=self.name,
            )
        raise failed

    async def _more(self, response: aiohttp.ClientResponse, answer: Answer) -> bytes:
        """Return what the network has brought; nothing at the end."""
        import aiohttp  # see connections.py

        try:
            if not answer.is_done:
                return await response.content.readany()
            if response.content.at_eof():
                return b""
            # The end of the body is still to come: without it the connection is lost.
            async with asyncio.timeout(DRAIN_TIMEOUT):
                return await response.content.readany()
        except TimeoutError:
            return b""
        except (aiohttp.ClientError, OSError) as error:
            name = type(error).__name__
        raise MalformedResponse(
            f"The stream of the provider {self.name!r} broke off ({name}).",
            provider=self.name,
            text=answer.assembler.text,
        )

    def _request_headers(self) -> dict[str, str]:
        key = self._api_key or (self.api_key_env and os.environ.get(self.api_key_env))
        if key:
            return {"Authorization": f"Bearer {key.strip()}", **self._headers}
        if self.api_key_env:
            raise AuthenticationFailed(
                f"The provider {self.name!r} has no key. "
                f"Set the environment variable {self.api_key_env}.",
                provider=self.name,
            )
        return self._headers

    def _key_name(self) -> str:
        return "" if self._api_key else self.api_key_env


def _payload(body: bytes) -> aiohttp.payload.Payload:
    import aiohttp  # see connections.py

    if len(body) < LARGE:
        return aiohttp.BytesPayload(body, content_type=JSON)
    return aiohttp.BytesIOPayload(io.BytesIO(body), content_type=JSON)


@lru_cache(maxsize=256)
def _max_tokens_field(model: str) -> str:
    is_new = COMPLETION_TOKENS.match(model.rpartition("/")[2])
    return "max_completion_tokens" if is_new else "max_tokens"


def effort(thinking: str | None, asked: str | None) -> str | None:
    """Return the ``reasoning_effort`` that an agent's options mean; None to leave it out."""
    if thinking == "off":
        return "none"
    level = asked or (None if thinking == "adaptive" else thinking)
    return "xhigh" if level == "max" else level


async def _document(response: aiohttp.ClientResponse) -> Any:
    """Return a short answer as JSON, or its text."""
    import aiohttp  # see connections.py

    try:
        data = await response.content.read(LARGE)
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
    except (aiohttp.ClientError, OSError):
        return ""
