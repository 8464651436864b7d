"""Arguments that are rows: what the model sees, and which rows a tool may get."""

from typing import Annotated

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import models
from django.test import override_settings

from mlango.agents import Agent, Context, Lookup, scope, tool
from mlango.agents.checks import check_agents
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.agents.scopes import _scopes
from mlango.exceptions import Misconfigured, ToolDefinitionError
from mlango.runtime.registry import registry

pytestmark = pytest.mark.django_db

NamedGroup = Annotated[Group, Lookup("name")]


class Holiday(models.Model):
    day = models.DateField("day", unique=True)

    class Meta:
        app_label = "control"
        managed = False

    def __str__(self):
        return str(self.day)


@tool
def on_day(holiday: Annotated[Holiday, Lookup("day")]) -> str:
    """Name a holiday."""
    return str(holiday)


@tool
def members(group: Group) -> str:
    """Count members."""
    return f"{type(group).__name__} {group.name}"


@tool
def by_name(group: NamedGroup, others: list[NamedGroup] | None = None) -> str:
    """Name groups."""
    return " ".join(each.name for each in [group, *(others or [])])


@tool
async def later(group: Group) -> str:
    """Name a group."""
    return group.name


class Desk(Agent):
    class Meta:
        app_label = "control"
        tools = [members, by_name, later, on_day]
        tracing = False


@pytest.fixture
def groups():
    return [Group.objects.create(name=name) for name in ("staff", "guests")]


@pytest.fixture
def boss():
    return get_user_model().objects.create_user("boss", is_staff=True)


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


@pytest.fixture(autouse=True)
def _no_scopes():
    kept = dict(_scopes)
    _scopes.clear()
    yield
    _scopes.clear()
    _scopes.update(kept)


def said(user, name="members", **arguments):
    turns = [[ToolCall("", name, arguments)], "ok"]
    run = Desk().run("hi", user=user, provider=ScriptedProvider(turns))
    return run.tool_results[0].content


def test_the_model_sees_the_key():
    schema = members.to_schema()["function"]["parameters"]
    assert schema["properties"]["group"]["type"] == "integer"
    assert "ID of the group" in schema["properties"]["group"]["description"]
    named = by_name.to_schema()["function"]["parameters"]["properties"]
    assert named["group"]["type"] == "string"


def test_a_tool_gets_the_row(groups, boss):
    assert said(boss, group=groups[0].pk) == "Group staff"
    assert said(boss, "by_name", group="staff", others=["guests"]) == "staff guests"


def test_an_async_tool_gets_the_row_too(groups, boss):
    assert said(boss, "later", group=groups[1].pk) == "guests"


def test_without_a_scope_only_staff_gets_rows(groups, ann):
    absent = f"There is no group with the ID {groups[0].pk}."
    assert said(ann, group=groups[0].pk) == absent
    assert said(None, group=groups[0].pk) == absent


def test_a_scope_says_which_rows_a_user_may_touch(groups, ann):
    ann.groups.add(groups[1])

    @scope(Group)
    def own(user):
        return Group.objects.filter(user=user)

    assert said(ann, group=groups[1].pk) == "Group guests"
    assert said(ann, group=groups[0].pk) == f"There is no group with the ID {groups[0].pk}."


def test_a_scope_holds_for_staff_as_well(groups, boss):
    scope(Group)(lambda user: Group.objects.none())
    assert "There is no group" in said(boss, group=groups[0].pk)


def test_a_scope_may_look_at_the_context(groups, boss):
    @scope(Group)
    def by_state(user, ctx: Context):
        return Group.objects.filter(name=ctx.session_id or "guests")

    assert said(boss, group=groups[1].pk) == "Group guests"


def test_a_key_of_another_kind_is_no_row(groups, boss):
    assert said(boss, "by_name", group="nobody") == "There is no group with the name 'nobody'."
    assert "group" in said(boss, group="x")


def test_a_key_that_a_field_cannot_read_is_no_row(boss):
    assert said(boss, "on_day", holiday="soon") == "There is no holiday with the day 'soon'."


def test_two_scopes_of_a_model_are_refused():
    @scope(Group)
    def one(user):
        return Group.objects.all()

    with pytest.raises(Misconfigured, match="two scopes"):

        @scope(Group)
        def two(user):
            return Group.objects.none()


def test_a_field_that_does_not_name_one_row_is_refused():
    with pytest.raises(ToolDefinitionError, match="is not unique"):

        @tool
        def find(permission: Annotated[Permission, Lookup("name")]) -> str:
            """Find."""

    with pytest.raises(ToolDefinitionError, match="has no field 'nme'"):

        @tool
        def seek(group: Annotated[Group, Lookup("nme")]) -> str:
            """Seek."""


def test_a_check_names_a_model_without_a_scope():
    registry.register(Desk)
    try:
        found = [message for message in check_agents(None) if message.obj == "control.Desk"]
    finally:
        registry._agents.pop("control.Desk", None)
    assert {message.id for message in found} == {"mlango.W013"}
    assert "@scope(Group)" in found[0].hint


def test_a_scope_that_returns_sliced_rows_is_told_as_a_mistake(groups, ann):
    @scope(Group)
    def sliced(user):
        return Group.objects.all()[:1]

    turns = [[ToolCall("", "members", {"group": groups[0].pk})], "ok"]
    desk = Desk()
    with override_settings(DEBUG=True):
        run = desk.run("hi", user=ann, provider=ScriptedProvider(turns))
    [result] = run.tool_results
    assert result.error_type == "TypeError"
    assert "slice" in result.content
