"""Who may look; nobody writes."""

import pytest
from django.contrib.auth import get_user_model

from mlango.models import Session, Trace
from tests.admin.conftest import make_trace, page_of

User = get_user_model()

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["trace", "session"])
def row(request):
    if request.param == "trace":
        return make_trace()
    return Session.objects.create(agent="shop.Support", key="s1")


def listing(row):
    return f"/admin/mlango/{row._meta.model_name}/"


def test_somebody_who_is_not_logged_in_is_sent_to_the_login(client, row):
    for address in (listing(row), page_of(row)):
        assert client.get(address).url.startswith("/admin/login/")


def test_staff_without_the_permission_sees_nothing(client, staff, row):
    client.force_login(staff("view_user", "add_trace", "delete_trace", "view_span"))

    for address in (listing(row), page_of(row)):
        assert client.get(address).status_code == 403
    assert b"/admin/mlango/" not in client.get("/admin/").content


def test_a_permission_for_one_table_shows_no_other(client, staff):
    trace = make_trace()
    session = Session.objects.create(agent="shop.Support", key="s1")
    client.force_login(staff("view_session"))

    assert client.get(page_of(session)).status_code == 200
    assert client.get(page_of(trace)).status_code == 403


def test_who_may_look_sees_the_list_and_the_page(viewer, row):
    for address in (listing(row), page_of(row)):
        assert viewer.get(address).status_code == 200


def test_not_even_a_superuser_adds_changes_or_deletes(client, row):
    client.force_login(User.objects.create_superuser("root"))
    page = page_of(row)
    before = vars(type(row).objects.get()).copy()

    addresses = [f"{listing(row)}add/", page, page.replace("change", "delete")]
    answers = [client.post(address, {"agent": "x", "post": "yes"}) for address in addresses]
    client.post(
        listing(row), {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
    )

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    after = vars(type(row).objects.get())
    assert {**before, "_state": None} == {**after, "_state": None}


def test_a_user_who_has_run_agents_can_be_deleted(client):
    maria = User.objects.create_user("maria")
    make_trace(user=maria, owner_key=str(maria.pk))
    client.force_login(User.objects.create_superuser("root"))

    users = f"/admin/{User._meta.app_label}/{User._meta.model_name}"
    client.post(f"{users}/{maria.pk}/delete/", {"post": "yes"})

    assert Trace.objects.get().user is None
