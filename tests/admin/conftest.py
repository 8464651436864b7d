"""Rows to look at, and people who look."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.utils import timezone

from mlango.models import Span, Trace

User = get_user_model()

NOW = timezone.now()


@pytest.fixture
def staff():
    """Return a function that makes somebody of the staff with permissions."""

    def make(*codenames):
        user = User.objects.create_user("maria", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        return user

    return make


@pytest.fixture
def viewer(client, staff):
    """Return the browser of somebody who may look at traces and sessions."""
    client.force_login(staff("view_trace", "view_session"))
    return client


def make_trace(uuid="abcdef12", spans=0, agent="shop.Support", **fields):
    """Return a trace with as many spans: a model call, then the tool calls that it asked for."""
    trace = Trace.objects.create(
        uuid=uuid.ljust(32, "0"),
        agent=agent,
        started_at=NOW,
        **{"status": "finished", "ended_at": NOW + timedelta(seconds=2)} | fields,
    )
    Span.objects.bulk_create(
        Span(
            trace=trace,
            ordering=number,
            parent_ordering=None if number == 1 else 1,
            step=1,
            kind="llm" if number == 1 else "tool",
            name=f"name{number}",
            input_json='{"number": 7}',
            output_json='"Found."',
            started_at=NOW,
            ended_at=NOW + timedelta(seconds=1),
        )
        for number in range(1, spans + 1)
    )
    return trace


def page_of(row):
    """Return the address of a row's page."""
    return f"/admin/mlango/{row._meta.model_name}/{row.pk}/change/"


def html_of(client, address):
    """Return the text of a page that must be there."""
    response = client.get(address)
    assert response.status_code == 200, address
    return response.content.decode()
