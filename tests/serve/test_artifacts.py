"""Files that runs make: kept, listed, and downloaded by their owners."""

import asyncio

import pytest
from django.core.files.storage import InMemoryStorage, storages
from django.test import TestCase, override_settings

from mlango.agents import Agent, Context, tool
from mlango.agents.erasing import erase
from mlango.models import Artifact, Trace
from mlango.serve import include, path
from tests.serve.site import Posting, events_of, make_user

MEMORY = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "mlango": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
}


@tool
def draw(ctx: Context, name: str = "a.svg", kind: str = "image/svg+xml") -> str:
    """Draw a picture."""
    ctx.artifact(b"<svg/>", kind, name)
    return "drawn"


class Painter(Agent):
    class Meta:
        app_label = "served"
        provider = "echo"
        tools = [draw]


class Gallery(Agent):
    class Meta:
        app_label = "served"
        provider = "echo"
        subagents = [Painter]


urlpatterns = [
    path("paint/", include(Painter.urls)),
    path("show/", include(Gallery.urls)),
]


@override_settings(ROOT_URLCONF=__name__, STORAGES=MEMORY)
class ArtifactTests(Posting, TestCase):
    def paint(self, call="use draw", url="/paint/run/"):
        """Have a file made; return what the answer says of it, and its URL."""
        answer = self.post(url, {"message": call}).json()
        [artifact] = answer["artifacts"]
        base = url.removesuffix("run/")
        return artifact, f"{base}runs/{answer['trace']}/artifacts/{artifact['id']}/"

    def test_its_owner_downloads_it(self):
        artifact, url = self.paint()

        response = self.client.get(url)

        self.assertEqual(response.getvalue(), b"<svg/>")
        self.assertEqual(artifact["name"], "a.svg")
        self.assertEqual(response["Content-Type"], "image/svg+xml")
        self.assertEqual(response["Content-Disposition"], 'attachment; filename="a.svg"')
        self.assertEqual(response["X-Content-Type-Options"], "nosniff")
        self.assertIn("sandbox", response["Content-Security-Policy"])
        self.assertEqual(response["Content-Length"], "6")

    def test_nobody_else_learns_that_it_is_there(self):
        _, url = self.paint()
        elsewhere = url.replace("/paint/", "/show/")
        self.assert_problem(self.client.get(elsewhere), 404, "no such run")
        self.assert_problem(self.client.get(url[:-3] + "00/"), 404, "no such file")
        self.assert_problem(self.client.get(url[:-3] + "%00/"), 404, "no such file")
        self.assert_problem(self.post(url), 405, "GET")

        self.client.force_login(make_user("bob", is_superuser=True))
        self.assert_problem(self.client.get(url), 404, "no such run")

        self.client.logout()
        self.assert_problem(self.client.get(url), 401, "Log in")

    def test_what_a_tool_says_of_it_cannot_harm(self):
        _, url = self.paint(
            'use draw {"name": "../a\\r\\nX: y.html", "kind": "text/html\\r\\nX: y"}'
        )

        response = self.client.get(url)

        self.assertEqual(response["Content-Type"], "application/octet-stream")
        self.assertEqual(response["Content-Disposition"], 'attachment; filename="a_X_y.html"')
        self.assertNotIn("X", response)
        self.assertEqual(Artifact.objects.get().path, f"artifacts/{Artifact.objects.get().pk}")

    def test_its_trace_lists_it_and_an_event_names_it(self):
        body = self.post("/paint/stream/", {"message": "use draw"}).getvalue()

        [told] = [data for _, kind, data in events_of(body) if kind == "artifact_added"]
        [row] = Trace.objects.get().artifacts.all()
        shown = self.client.get(f"/paint/runs/{row.trace.pk}/").json()
        self.assertEqual(shown["artifacts"], [row.describe()])
        self.assertEqual(told["artifact"], row.pk)
        self.assertEqual(
            row.describe(),
            {"id": row.pk, "name": "a.svg", "mime_type": "image/svg+xml", "size": 6},
        )

    def test_what_a_sub_agent_made_is_the_leads(self):
        artifact, url = self.paint('use painter {"message": "use draw"}', "/show/run/")

        self.assertEqual(self.client.get(url).getvalue(), b"<svg/>")
        self.assertEqual(Artifact.objects.get().pk, artifact["id"])

    def test_the_file_goes_with_its_row(self):
        self.paint()
        row = Artifact.objects.get()
        self.assertTrue(storages["mlango"].exists(row.path))

        with self.captureOnCommitCallbacks(execute=True):
            erase(self.user)

        self.assertFalse(storages["mlango"].exists(row.path))
        self.assertFalse(Artifact.objects.exists())

    def test_a_file_that_is_gone_is_not_there(self):
        _, url = self.paint()
        storages["mlango"].delete(Artifact.objects.get().path)

        self.assert_problem(self.client.get(url), 404, "no such file")

    def test_without_content_nothing_is_kept(self):
        Painter().run("use draw", user=self.user)
        with override_settings(MLANGO={"CAPTURE_CONTENT": False}):
            run = Painter().run("use draw", user=self.user)

        self.assertEqual([each.name for each in run.artifacts], ["a.svg"])
        self.assertEqual(Artifact.objects.count(), 1)

    def test_without_a_place_nothing_is_kept(self):
        with override_settings(STORAGES={"default": MEMORY["default"]}, MEDIA_ROOT=""):
            run = Painter().run("use draw", user=self.user)

        self.assertTrue(run.ok)
        self.assertFalse(Artifact.objects.exists())

    def test_the_default_storage_is_used_where_it_has_a_place(self):
        with override_settings(STORAGES={"default": MEMORY["mlango"]}):
            _, url = self.paint()

            self.assertEqual(self.client.get(url).getvalue(), b"<svg/>")

    def test_a_run_goes_on_when_its_file_cannot_be_kept(self):
        with (
            pytest.MonkeyPatch.context() as patch,
            self.assertLogs("mlango.traces", "ERROR") as logs,
        ):
            patch.setattr(InMemoryStorage, "save", broken)
            run = Painter().run("use draw", user=self.user)

        self.assertTrue(run.ok)
        self.assertIn(run.artifacts[0].id, logs.output[0])


def broken(*args, **kwargs):
    raise OSError("disk full")


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF=__name__, STORAGES=MEMORY)
def test_it_is_read_in_pieces_under_asgi(async_client):
    user = make_user()
    run = Painter().run("use draw", user=user)
    async_client.force_login(user)

    async def download():
        url = f"/paint/runs/{run.trace_uuid}/artifacts/{run.artifacts[0].id}/"
        response = await async_client.get(url)
        return b"".join([chunk async for chunk in response.streaming_content])

    assert asyncio.run(download()) == b"<svg/>"
