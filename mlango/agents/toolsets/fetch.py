"""One HTTP request to the public internet, for a URL that nobody here wrote."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mlango.agents.toolsets.addresses import is_literal, is_public
from mlango.exceptions import ToolError

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

MAX_BYTES = 1024 * 1024
MAX_HEADERS = 20
MAX_HEADER_CHARS = 4096
MAX_URL_CHARS = 4096
TIMEOUT = 20

# They say where a request comes from, where it goes or how it is framed.
REFUSED_HEADERS = {
    "accept-encoding",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
REFUSED_PREFIXES = ("proxy-", "sec-", "x-forwarded-")


async def fetch(
    url: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: str = "",
    *,
    allowed: Callable[[str], bool] = is_public,
) -> dict[str, Any]:
    """Return status, type and text of the answer; raise ToolError if there is none.

    Every address of the host must be ``allowed``, and the connection goes to one of those.
    A redirect is not followed: its ``location`` is returned.
    """
    import aiohttp  # takes long to import

    target = _checked_url(url, allowed)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_resolver(allowed), use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT),
        auto_decompress=False,  # a few bytes may become many
        headers={"Accept-Encoding": "identity"},
    )
    try:
        async with (
            session,
            session.request(
                method,
                target,
                headers=_checked_headers(headers or {}),
                data=body.encode() if body else None,
                allow_redirects=False,
            ) as response,
        ):
            return await _described(response)
    except TimeoutError:
        raise ToolError(f"{target.host} did not answer within {TIMEOUT} seconds.") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(error.__cause__, _Refused):
            raise ToolError(str(error.__cause__)) from None
        raise ToolError(f"No answer from {target.host} ({type(error).__name__}).") from error


def _checked_url(url: str, allowed: Callable[[str], bool]) -> URL:
    from yarl import URL  # a part of aiohttp

    try:
        target = URL(url)
        host = target.raw_host
    except ValueError:
        raise ToolError("This is not a URL. Give one such as https://example.com/.") from None
    if len(url) > MAX_URL_CHARS:
        raise ToolError(f"The URL is longer than {MAX_URL_CHARS} characters.")
    if target.scheme not in ("http", "https") or not host:
        raise ToolError("The URL must begin with http:// or https:// and name a host.")
    if target.user is not None or target.password is not None:
        raise ToolError("The URL must hold no user name and no password.")
    # The client asks no resolver for an address.
    if is_literal(host) and not allowed(host):
        raise ToolError(f"{host} is not a public address.")
    return target


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if len(headers) > MAX_HEADERS or sum(map(len, headers.values())) > MAX_HEADER_CHARS:
        raise ToolError(
            f"At most {MAX_HEADERS} headers with {MAX_HEADER_CHARS} characters are allowed."
        )
    for name in headers:
        if name.lower() in REFUSED_HEADERS or name.lower().startswith(REFUSED_PREFIXES):
            raise ToolError(f"The header {name!r} may not be set.")
    return dict(headers)


class _Refused(OSError):
    """A host has an address that may not be asked."""


def _resolver(allowed: Callable[[str], bool]) -> aiohttp.abc.AbstractResolver:
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Resolver(AbstractResolver):
        """Looks a host up once and gives the connection nothing but checked addresses."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
            addresses = [(kind, str(where[0]), proto) for kind, _, proto, _, where in found]
            if not all(allowed(address) for _, address, _ in addresses):
                raise _Refused(f"{host} has an address that is not public.")
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=kind,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST,
                )
                for kind, address, proto in addresses
            ]

        async def close(self) -> None:
            """Nothing is kept."""

    return Resolver()


async def _described(response: aiohttp.ClientResponse) -> dict[str, Any]:
    described: dict[str, Any] = {"status": response.status, "type": response.content_type}
    if "Location" in response.headers:
        described["location"] = response.headers["Location"]
    described["text"] = await _text(response)
    return described


async def _text(response: aiohttp.ClientResponse) -> str:
    data = bytearray()
    while len(data) <= MAX_BYTES and (piece := await response.content.readany()):
        data += piece
    if len(data) > MAX_BYTES:
        return f"(More than {MAX_BYTES:,} bytes: not read.)"
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        return "(Compressed, which was not asked for: not read.)"
    try:
        return data.decode(response.charset or "utf-8")
    except (UnicodeDecodeError, LookupError):
        return f"({len(data):,} bytes that are not text.)"
