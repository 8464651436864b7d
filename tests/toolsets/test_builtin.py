from __future__ import annotations

import asyncio
import datetime
import gzip
import socket
from contextlib import asynccontextmanager
from unittest import mock

import pytest
from aiohttp import web
from django.utils import timezone, translation

from mlango.agents import current_date, day_name, http_request
from mlango.agents.toolsets import fetch as fetching
from mlango.agents.toolsets.addresses import is_public
from mlango.agents.toolsets.fetch import fetch
from mlango.exceptions import ToolError

# -- addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001::200e"],
)
def test_an_address_of_the_internet_is_public(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "example.com",
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::8.8.8.8",
        "::ffff:10.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2606:4700::5efe:10.0.0.1",
        "2606:4700::200:5efe:10.0.0.1",
        "2606:4700::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_of_the_internet_is_not_public(address):
    assert not is_public(address)


# -- http_request ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://１２７.0.0.1/",
        "http://localhost/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fe80::1%25lo]/",
    ],
)
async def test_what_leads_into_the_own_network_is_refused(url):
    with pytest.raises(ToolError, match=r"not public|not a public address|not a URL"):
        await http_request(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "/path",
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://x/",
        "http:///x",
    ],
)
async def test_only_http_urls_are_asked(url):
    with pytest.raises(ToolError, match=r"http://|not a URL"):
        await http_request(url)


async def test_a_url_with_a_password_is_refused():
    with pytest.raises(ToolError, match="no password"):
        await http_request("https://user:secret@example.com/")


@pytest.mark.parametrize("name", ["Host", "Cookie", "X-Forwarded-For", "Proxy-Authorization"])
async def test_a_header_that_routes_or_frames_is_refused(name):
    with pytest.raises(ToolError, match="may not be set"):
        await http_request("https://example.com/", headers={name: "x"})


async def test_too_many_headers_are_refused():
    with pytest.raises(ToolError, match="At most 20 headers"):
        await http_request("https://example.com/", headers={f"h{n}": "" for n in range(21)})


def anywhere(address: str) -> bool:
    return True


@asynccontextmanager
async def server():
    """Serve a site on this machine, and yield its port."""

    async def echo(request):
        return web.json_response(
            {
                "method": request.method,
                "body": await request.text(),
                "header": request.headers.get("X-Own", ""),
                "host": request.host,
            }
        )

    async def moved(request):
        raise web.HTTPFound("http://169.254.169.254/")

    async def large(request):
        return web.Response(body=b"x" * (fetching.MAX_BYTES + 1))

    async def binary(request):
        return web.Response(body=b"\xff\xfe\x00", content_type="image/png")

    async def zipped(request):
        return web.Response(body=gzip.compress(b"x"), headers={"Content-Encoding": "gzip"})

    async def silent(request):
        await done.wait()

    done = asyncio.Event()
    app = web.Application()
    for handler in (echo, moved, large, binary, zipped, silent):
        app.router.add_route("*", f"/{handler.__name__}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        done.set()
        await runner.cleanup()


async def test_a_request_is_sent_and_its_answer_described():
    async with server() as port:
        answer = await fetch(
            f"http://127.0.0.1:{port}/echo", "POST", {"X-Own": "1"}, "grüß", allowed=anywhere
        )

    assert answer["status"] == 200
    assert answer["type"] == "application/json"
    assert '"method": "POST"' in answer["text"]
    assert '"header": "1"' in answer["text"]
    assert '"body": "gr\\u00fc\\u00df"' in answer["text"]


async def test_a_redirect_is_told_and_not_followed():
    async with server() as port:
        answer = await fetch(f"http://127.0.0.1:{port}/moved", allowed=anywhere)

    assert (answer["status"], answer["location"]) == (302, "http://169.254.169.254/")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("large", "(More than 1,048,576 bytes: not read.)"),
        ("binary", "(3 bytes that are not text.)"),
        ("zipped", "(Compressed, which was not asked for: not read.)"),
    ],
)
async def test_what_cannot_be_shown_is_named(path, text):
    async with server() as port:
        assert (await fetch(f"http://127.0.0.1:{port}/{path}", allowed=anywhere))["text"] == text


async def test_a_site_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(fetching, "TIMEOUT", 0.05)
    async with server() as port:
        with pytest.raises(ToolError, match=r"did not answer within 0\.05 seconds"):
            await fetch(f"http://127.0.0.1:{port}/silent", allowed=anywhere)


def names(*addresses: str):
    """Let every host have these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]
    loop = asyncio.get_running_loop()
    return mock.patch.object(loop, "getaddrinfo", mock.AsyncMock(return_value=found))


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1"])
async def test_an_address_in_another_spelling_is_refused(host):
    with names("127.0.0.1"), pytest.raises(ToolError, match=r"not public|No answer from"):
        await http_request(f"http://{host}/")


async def test_one_private_address_among_others_is_enough_to_refuse():
    with names("8.8.8.8", "10.0.0.1"), pytest.raises(ToolError, match="not public"):
        await http_request("http://site.example/")


async def test_a_host_is_looked_up_once_and_the_checked_address_is_used():
    async with server() as port:
        with names("127.0.0.1") as lookup:
            answer = await fetch(f"http://site.example:{port}/echo", allowed=anywhere)

    assert lookup.call_count == 1
    assert f'"host": "site.example:{port}"' in answer["text"]


async def test_a_host_that_is_not_known_is_told():
    failed = mock.AsyncMock(side_effect=socket.gaierror(-2, "Name or service not known"))
    with (
        mock.patch.object(asyncio.get_running_loop(), "getaddrinfo", failed),
        pytest.raises(ToolError, match=r"No answer from site\.example"),
    ):
        await http_request("http://site.example/")


# -- dates ----------------------------------------------------------------------------------


def test_the_date_is_that_of_the_active_time_zone():
    late = datetime.datetime(2026, 1, 1, 23, 30, tzinfo=datetime.UTC)
    with mock.patch.object(timezone, "now", return_value=late):
        with timezone.override("Pacific/Auckland"):
            assert current_date() == "2026-01-02"
        with timezone.override("America/Lima"):
            assert current_date() == "2026-01-01"


def test_the_day_of_a_date_is_named_in_the_active_language():
    arguments = day_name.parameters.validate('{"date": "2024-02-29"}')

    assert day_name(**arguments) == "Thursday"
    with translation.override("de"):
        assert day_name(**arguments) == "Donnerstag"
