"""What an error of a provider becomes, and what of it is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from mlango.agents.providers.failures import (
    in_stream,
    refusal,
    refused_option,
    retry_after,
    safe_words,
)
from mlango.agents.providers.unsupported import Unsupported
from mlango.exceptions import (
    AuthenticationFailed,
    ContentFiltered,
    ContextLengthExceeded,
    InvalidRequest,
    ProviderUnavailable,
    RateLimited,
)


def test_the_message_tells_provider_status_and_safe_words():
    error = refusal("here", 400, {"error": {"type": "invalid_request_error", "param": "seed"}})

    assert type(error) is InvalidRequest
    assert str(error) == (
        "The provider 'here' refused the request (HTTP 400: invalid_request_error, seed)."
    )


@pytest.mark.parametrize(
    "word", ["sk-canary-0123456789", "What is my PIN 1234", "A" * 50, "a" * 50, 42, None, ["x"]]
)
def test_what_may_be_a_key_or_a_prompt_is_no_safe_word(word):
    assert safe_words({"code": word, "type": word, "param": word}) == []


@pytest.mark.parametrize(
    ("status", "answer", "kind", "retryable"),
    [
        (401, "Unauthorized", AuthenticationFailed, False),
        (402, {"error": {"message": "Insufficient credits"}}, RateLimited, False),
        (403, {"error": {"message": "Your input was flagged"}}, ContentFiltered, False),
        (409, "", ProviderUnavailable, True),
        (413, "too large", InvalidRequest, False),
        (429, {"error": {"message": "check your plan and billing details"}}, RateLimited, False),
        (400, [{"error": {"message": "too many tokens"}}], ContextLengthExceeded, False),
        (418, None, InvalidRequest, False),
        (599, "<html>", ProviderUnavailable, True),
    ],
)
def test_the_kind_is_told_by_status_and_words(status, answer, kind, retryable):
    error = refusal("here", status, answer)

    assert type(error) is kind
    assert error.retryable is retryable


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"error": {"code": 429}}, RateLimited),
        ({"error": {"code": "502"}}, ProviderUnavailable),
        ({"error": {"type": "rate_limit_error"}}, RateLimited),
        ({"error": {"type": "invalid_request_error"}}, InvalidRequest),
        ({"error": {"message": "maximum context length"}}, ContextLengthExceeded),
        ({"error": {"type": "overloaded_error"}}, ProviderUnavailable),
        ({"error": "boom"}, ProviderUnavailable),
        ({"object": "error", "code": 400}, InvalidRequest),
    ],
)
def test_an_error_in_a_stream_has_its_kind_and_the_text(answer, kind):
    error = in_stream("here", answer, "half")

    assert type(error) is kind
    assert error.text == "half"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"Retry-After": "-3"}, 0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
    ],
)
def test_the_wait_is_read_in_seconds(headers, seconds):
    assert retry_after(headers) == seconds


def test_the_wait_may_be_a_date():
    soon = datetime.now(UTC) + timedelta(seconds=100)
    past = datetime.now(UTC) - timedelta(seconds=100)

    assert 90 < retry_after({"Retry-After": format_datetime(soon, usegmt=True)}) <= 100
    assert retry_after({"Retry-After": format_datetime(past, usegmt=True)}) == 0
    assert retry_after({"Retry-After": soon.strftime("%a, %d %b %Y %H:%M:%S -0000")}) > 90


@pytest.mark.parametrize(
    ("answer", "option"),
    [
        ({"error": {"code": "unsupported_parameter", "param": "temperature"}}, "temperature"),
        ({"error": {"message": "Unknown field: top_p"}}, "top_p"),
        ({"detail": "temperature: extra fields not permitted"}, "temperature"),
        ("`temperature` is deprecated for this model.", "temperature"),
        ({"error": {"message": "temperature must be at most 2"}}, ""),
        ({"error": {"message": "Unknown field: temperatures"}}, ""),
        ({"error": {"message": "Unknown field: stop"}}, ""),
    ],
)
def test_an_option_that_was_refused_is_named(answer, option):
    sent = {"temperature": 1, "top_p": 1}

    assert refused_option(answer, sent, ("temperature", "top_p", "stop")) == option


def test_two_requests_that_learn_the_same_warn_once(caplog):
    unsupported = Unsupported()

    unsupported.add("here", "m", "seed")
    unsupported.add("here", "m", "seed")
    unsupported.add("here", "n", "seed")

    assert [record.args[0] for record in caplog.records] == ["m", "n"]
    assert unsupported.of("m") == {"seed"}
    assert unsupported.of("x") == set()
