"""Answers as forms: checked in the form's own words, ready to be saved."""

import asyncio

import pytest
from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.utils import translation
from django.utils.translation import gettext_lazy as _

from mlango.agents import Agent
from mlango.agents.output.forms import FormOutput
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call
from mlango.core.values import to_json
from mlango.exceptions import Misconfigured

User = get_user_model()


class Feedback(forms.Form):
    rating = forms.IntegerField(min_value=1, max_value=5, help_text="Five is best")
    mood = forms.ChoiceField(choices=[("", "-"), ("good", "Good"), ("bad", "Bad")])
    on = forms.DateField(label="Day")
    text = forms.CharField(max_length=10, required=False)
    tags = forms.MultipleChoiceField(choices=[("a", "A"), ("b", "B")], required=False)
    extra = forms.JSONField(required=False)
    urgent = forms.BooleanField(required=False)

    def clean(self):
        cleaned = super().clean()
        if cleaned.get("mood") == "good" and cleaned.get("rating") == 1:
            raise forms.ValidationError("A good mood does not go with one star.")
        return cleaned


class GroupForm(forms.ModelForm):
    class Meta:
        model = Group
        fields = ["name"]


class MemberForm(forms.Form):
    user = forms.ModelChoiceField(User.objects.all())
    groups = forms.ModelMultipleChoiceField(Group.objects.all(), to_field_name="name")


def answering(form):
    class Answering(Agent):
        class Meta:
            output = form
            tracing = False
            abstract = True

    return Answering()


GOOD = {"rating": 4, "mood": "good", "on": "2026-05-01"}


def run(form, *answers, **options):
    provider = ScriptedProvider([call("final_answer", **answer) for answer in answers])
    return answering(form).run("hi", provider=provider, **options), provider


def test_the_schema_says_what_the_form_takes():
    schema = FormOutput("x", Feedback).schema
    assert schema["required"] == ["rating", "mood", "on"]
    properties = schema["properties"]
    assert properties["rating"] == {
        "type": "integer",
        "maximum": 5,
        "minimum": 1,
        "description": "Five is best",
    }
    assert properties["mood"] == {"type": "string", "enum": ["good", "bad"]}
    assert properties["on"] == {"type": "string", "format": "date", "description": "Day"}
    assert properties["text"] == {"type": "string", "maxLength": 10}
    assert properties["tags"] == {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
    assert properties["urgent"] == {"type": "boolean"}


def test_the_output_is_the_valid_form():
    result, _ = run(Feedback, {**GOOD, "tags": ["b"], "extra": {"a": [1]}, "urgent": True})
    cleaned = result.output.cleaned_data
    assert cleaned["on"].isoformat() == "2026-05-01"
    assert (cleaned["tags"], cleaned["extra"], cleaned["urgent"]) == (["b"], {"a": [1]}, True)


def test_errors_go_back_as_the_form_words_them():
    result, provider = run(
        Feedback, {**GOOD, "rating": 9, "mood": "odd"}, {**GOOD, "rating": 1}, GOOD
    )
    first, second = (each.last_text for each in provider.calls[1:])
    assert "rating: Ensure this value is less than or equal to 5." in first
    assert "mood: Select a valid choice. odd is not one of the available choices." in first
    assert "\nA good mood does not go with one star.\n" in second
    assert result.ok


def test_errors_are_in_the_language_of_the_caller():
    with translation.override("de"):
        _, provider = run(Feedback, {"rating": 4, "mood": "good"}, GOOD)
    assert "on: Dieses Feld ist zwingend erforderlich." in provider.last_call.last_text


def test_an_answer_that_is_no_object_is_told_so():
    provider = ScriptedProvider(["[1]", call("final_answer", **GOOD)])
    assert answering(Feedback).run("hi", provider=provider).ok
    assert "a JSON object is needed" in provider.last_call.last_text


@pytest.mark.django_db
def test_a_model_form_saves_a_row_in_the_callers_transaction():
    Group.objects.create(name="taken")
    result, provider = run(GroupForm, {"name": "taken"}, {"name": "free"})
    assert "name: Group with this Name already exists." in provider.last_call.last_text
    row = result.output.save()
    assert Group.objects.get(name="free") == row


@pytest.mark.django_db(transaction=True)
def test_a_model_form_is_checked_off_the_event_loop():
    Group.objects.create(name="taken")
    provider = ScriptedProvider(
        [call("final_answer", name="taken"), call("final_answer", name="free")]
    )
    result = asyncio.run(answering(GroupForm).arun("hi", provider=provider))
    assert result.output.cleaned_data == {"name": "free"}


@pytest.mark.django_db
def test_rows_are_picked_by_key_and_never_shown():
    user = User.objects.create(username="ada", email="ada@example.com")
    Group.objects.create(name="staff")
    assert FormOutput("x", MemberForm).schema["properties"] == {
        "user": {"type": "integer" if isinstance(user.pk, int) else "string"},
        "groups": {"type": "array", "items": {"type": "string"}},
    }
    result, _ = run(MemberForm, {"user": to_json(user.pk), "groups": ["staff"]})
    assert result.output.cleaned_data["user"] == user
    assert result.describe()["output"] == {"user": to_json(user.pk), "groups": ["staff"]}


def test_a_field_that_a_model_cannot_fill_is_refused():
    class Upload(forms.Form):
        file = forms.FileField()

    class Split(forms.Form):
        at = forms.SplitDateTimeField()

    for form, name in ((Upload, "file"), (Split, "at")):
        with pytest.raises(Misconfigured, match=name):
            FormOutput("Answering", form)


def test_a_lazy_label_is_told_in_words():
    class Named(forms.Form):
        name = forms.CharField(label=_("Name"))

    assert FormOutput("x", Named).schema["properties"]["name"]["description"] == "Name"
