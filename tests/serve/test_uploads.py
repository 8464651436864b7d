"""Files and images that come with a message."""

from base64 import b64encode

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, TestCase, override_settings

from mlango.agents import Agent
from mlango.agents.providers import Completion, Provider
from mlango.models import Trace
from mlango.serve import path
from mlango.serve.uploads import safe_name
from tests.serve.site import Posting

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


class Seeing(Provider):
    """Notes what it was shown."""

    seen = ()

    def complete(self, **options):
        self.seen = options["messages"][-1]["content"]
        return Completion("seen")


class Reader(Agent):
    class Meta:
        app_label = "served"
        provider = Seeing()


urlpatterns = [
    path("read/", Reader.as_endpoint()),
    path("approvals/", Reader.as_approvals_endpoint()),
]


def encoded(data):
    return b64encode(data).decode()


def seen():
    """Return the content parts that the model read beside the text."""
    return Reader._meta.provider.seen[1:]


@override_settings(ROOT_URLCONF=__name__)
class UploadTests(Posting, TestCase):
    def send(self, **fields):
        return self.post("/read/", {"message": "What is it?", **fields})

    def send_form(self, **fields):
        return self.client.post("/read/", {"message": "What is it?", **fields})

    def assert_refused(self, response, status, detail):
        self.assert_problem(response, status, detail)
        self.assertFalse(Trace.objects.exists())

    def test_a_file_and_an_image_in_json_reach_the_model(self):
        response = self.send(
            images=[f"data:image/png;base64,{encoded(PNG)}"],
            files=[{"name": "../../notes.csv", "data": encoded(b"a,b"), "type": "text/csv"}],
        )

        self.assertEqual(response.json()["output"], "seen")
        image, file = seen()
        self.assertEqual(image["image_url"]["url"], f"data:image/png;base64,{encoded(PNG)}")
        self.assertEqual(
            file["file"],
            {"filename": "notes.csv", "file_data": f"data:text/csv;base64,{encoded(b'a,b')}"},
        )

    def test_files_in_a_form_reach_the_model(self):
        response = self.send_form(
            images=SimpleUploadedFile("a.png", PNG, "image/png"),
            files=[SimpleUploadedFile("b.md", b"# b"), SimpleUploadedFile("c.pdf", b"%PDF-1.4")],
        )

        self.assertEqual(response.json()["output"], "seen")
        self.assertEqual([part["type"] for part in seen()], ["image_url", "file", "file"])
        self.assertEqual(seen()[1]["file"]["filename"], "b.md")

    def test_a_form_needs_the_csrf_token_and_may_hold_it(self):
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.user)
        client.cookies["csrftoken"] = token = "a" * 32

        self.assert_problem(client.post("/read/", {"message": "hi"}), 403, "CSRF")
        response = client.post("/read/", {"message": "hi", "csrfmiddlewaretoken": token})
        self.assertEqual(response.status_code, 200)

    def test_what_its_bytes_are_counts_and_not_what_it_is_called(self):
        cases = [
            ({"images": [{"name": "a.png", "data": encoded(b"<script>")}]}, "'text/html'"),
            ({"images": [f"data:image/png;base64,{encoded(b'text')}"]}, "but is 'text/plain'"),
            ({"files": [{"name": "a.txt", "data": encoded(b"MZ\x90\0")}]}, "octet-stream"),
            ({"files": [{"name": "a.txt", "data": encoded(b"PK\x03\x04")}]}, "application/zip"),
        ]
        cases[0][0]["images"][0]["name"] = "a.html"
        for fields, detail in cases:
            self.assert_refused(self.send(**fields), 415, detail)

    def test_an_office_document_is_known_by_name_and_bytes(self):
        self.send(files=[{"name": "a.docx", "data": encoded(b"PK\x03\x04")}])

        self.assertIn("wordprocessingml", seen()[0]["file"]["file_data"])

    def test_what_is_no_file_is_refused(self):
        cases = {
            "must be a list": "a.png",
            "files[0] must be a 'data:' URL": ["http://10.0.0.1/a.png"],
            "an object with 'data'": [{"name": "a"}],
            "has no 'url'": [{"data": "", "url": "http://10.0.0.1/"}],
            "'name' must be a string": [{"data": "", "name": 1}],
            "not base64": [{"data": "a b"}],
        }
        for detail, files in cases.items():
            self.assert_refused(self.send(files=files), 400, detail)

    @override_settings(MLANGO={"MAX_FILES": 2})
    def test_files_and_images_count_together(self):
        file = {"data": encoded(b"a")}

        self.assert_refused(self.send(files=[file] * 2, images=[file]), 400, "3 files")

    @override_settings(MLANGO={"MAX_FILE_BYTES": 4, "MAX_REQUEST_BYTES": 6})
    def test_a_file_is_too_large_before_it_is_decoded(self):
        broken = "!" * 6 + "!="  # five bytes, if it could be decoded

        self.assert_refused(self.send(files=[{"data": broken}]), 413, "5 bytes, more than 4")
        self.assert_refused(
            self.send(files=[{"data": encoded(b"abcd")}] * 2), 413, "8 bytes, more than 6"
        )
        file = SimpleUploadedFile("a.txt", b"abcde")
        self.assert_refused(self.send_form(files=file), 413, "MAX_FILE_BYTES")

    @override_settings(MLANGO={"MAX_HTTP_BODY_BYTES": 100})
    def test_a_form_is_too_large_before_it_is_read(self):
        file = SimpleUploadedFile("a.txt", b"a" * 200)

        self.assert_refused(self.send_form(files=file), 413, "MAX_HTTP_BODY_BYTES")

    def test_a_form_that_is_not_one_is_refused(self):
        kind = "multipart/form-data; boundary=x"
        for body, content_type in ((b"nothing", "multipart/form-data"), (b"--x\r\n\r\n", kind)):
            response = self.client.post(
                "/read/", body, content_type=content_type, headers={"x-csrftoken": "a" * 32}
            )
            self.assert_refused(response, 400, "")

    def test_a_form_with_a_field_twice_or_of_the_other_kind_is_refused(self):
        file = SimpleUploadedFile("a.txt", b"a")
        for fields in ({"session_id": ["a", "b"]}, {"files": "text"}, {"session_id": file}):
            self.assert_refused(self.send_form(**fields), 400, "must be")
        self.assert_refused(self.send_form(file=file), 400, "Did you mean 'files'?")

    def test_a_decision_is_json(self):
        response = self.client.post("/approvals/", {"approval": "a" * 32})

        self.assert_problem(response, 415, "application/json")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("C:\\a b.txt", "a_b.txt"),
        ("C:evil", "C_evil"),
        ("\u2025/\u2024\u2024/x", "x"),
        (".htaccess", "htaccess"),
        ("..", "file"),
        ("", "file"),
        ("a\0b\r\nc.txt", "a_b_c.txt"),
        ("%2e%2e%2fx", "2e_2e_2fx"),
        ("résumé 1.txt", "résumé_1.txt"),
        ("x" * 300 + ".txt", "x" * 96 + ".txt"),
    ],
)
def test_a_name_is_safe_anywhere(name, safe):
    assert safe_name(name) == safe
