"""The pages that a load balancer asks."""

import signal
import threading

import pytest
from django.db import DatabaseError, InterfaceError
from django.test import TestCase, modify_settings, override_settings

from mlango.serve import health, limits
from mlango.serve.drain import Drain


@override_settings(ROOT_URLCONF="mlango.urls")
class HealthTests(TestCase):
    def test_both_answer_anyone(self):
        for url in ("/health", "/healthz"):
            response = self.client.get(url)

            self.assertEqual(response.status_code, 200)
            self.assertEqual(response.json(), {"status": "ok"})
            self.assertIn("no-store", response["Cache-Control"])
            self.assertEqual(self.client.head(url).status_code, 200)
            self.assertEqual(self.client.post(url).status_code, 405)

    @modify_settings(
        MIDDLEWARE={"append": "django.contrib.auth.middleware.LoginRequiredMiddleware"}
    )
    def test_they_ask_for_no_login(self):
        self.assertEqual(self.client.get("/health").status_code, 200)
        self.assertEqual(self.client.get("/healthz").status_code, 200)

    @override_settings(MLANGO={"MAX_CONCURRENT_REQUESTS": 1})
    def test_they_need_no_place(self):
        limits.runs.taken = 1
        self.addCleanup(setattr, limits.runs, "taken", 0)

        self.assertEqual(self.client.get("/health").status_code, 200)
        self.assertEqual(self.client.get("/healthz").status_code, 200)


class Broken(dict):
    """Databases that do not answer."""

    def __init__(self, error):
        self.error = error

    def __missing__(self, alias):
        raise self.error("s3cret host")


@pytest.mark.urls("mlango.urls")
class TestUnhealthy:
    @pytest.mark.parametrize("error", [DatabaseError, InterfaceError])
    def test_it_lives_without_a_database_but_is_not_ready(self, client, monkeypatch, error):
        monkeypatch.setattr(health, "connections", Broken(error))

        assert client.get("/health").status_code == 200
        response = client.get("/healthz")

        assert response.status_code == 503
        assert response.json() == {"status": "unavailable"}

    def test_it_is_not_ready_when_it_is_about_to_end(self, client, monkeypatch):
        draining = Drain()
        draining._set.set()
        monkeypatch.setattr(health, "drain", draining)

        assert client.get("/health").status_code == 200
        assert client.get("/healthz").json() == {"status": "draining"}


@pytest.fixture
def handler():
    """Keeps the handler of SIGTERM as it was."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda chosen: signal.signal(signal.SIGTERM, chosen)
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_noticed_and_handled_as_before(handler):
    handled = []
    handler(lambda *args: handled.append(args[0]))
    draining = Drain()
    draining.watch()
    draining.watch()

    signal.raise_signal(signal.SIGTERM)

    assert draining.has_begun
    assert handled == [signal.SIGTERM]


def test_sigterm_is_handled_once_by_who_came_later_and_calls_who_was_before(handler):
    handled = []
    draining = Drain()
    draining.watch()
    before = signal.getsignal(signal.SIGTERM)
    handler(lambda *args: (handled.append(args[0]), before(*args)))
    draining.watch()

    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)

    assert handled == [signal.SIGTERM] * 2


def test_sigterm_that_is_ignored_stays_so(handler):
    handler(signal.SIG_IGN)
    draining = Drain()
    draining.watch()

    signal.raise_signal(signal.SIGTERM)

    assert draining.has_begun


def test_a_thread_sets_no_handler(handler):
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=Drain().watch)
    thread.start()
    thread.join()

    assert signal.getsignal(signal.SIGTERM) == before
