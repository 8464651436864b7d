"""Answers as serializers of Django REST framework, where that is installed."""

import pytest
from django.contrib.auth.models import Group

from mlango.agents import Agent
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call

serializers = pytest.importorskip("rest_framework.serializers")


class LineSerializer(serializers.Serializer):
    sku = serializers.CharField(max_length=8)
    count = serializers.IntegerField(min_value=1)


class OrderSerializer(serializers.Serializer):
    id = serializers.IntegerField(read_only=True)
    status = serializers.ChoiceField(choices=["open", "paid"])
    lines = LineSerializer(many=True)
    note = serializers.CharField(allow_null=True, required=False)
    group = serializers.PrimaryKeyRelatedField(queryset=Group.objects.all(), required=False)


class GroupSerializer(serializers.ModelSerializer):
    class Meta:
        model = Group
        fields = ["id", "name"]


def run(serializer, *answers):
    class Answering(Agent):
        class Meta:
            output = serializer
            tracing = False
            abstract = True

    provider = ScriptedProvider([call("final_answer", **answer) for answer in answers])
    return Answering().run("hi", provider=provider), provider


def test_the_schema_says_what_the_serializer_takes():
    _, provider = run(OrderSerializer, {"status": "open", "lines": [{"sku": "a", "count": 1}]})
    schema = provider.last_call.tools[0]["function"]["parameters"]
    assert schema["required"] == ["status", "lines"]
    assert "id" not in schema["properties"]
    assert schema["properties"]["status"]["enum"] == ["open", "paid"]
    line = schema["properties"]["lines"]["items"]["properties"]
    assert (line["sku"]["maxLength"], line["count"]["minimum"]) == (8, 1)


def test_the_output_is_the_valid_serializer():
    answer = {"status": "open", "lines": [{"sku": "a", "count": 1}]}
    result, _ = run(OrderSerializer, answer)
    assert result.output.validated_data["lines"][0]["sku"] == "a"
    assert result.describe()["output"] == answer


def test_errors_go_back_as_the_serializer_words_them():
    _, provider = run(
        OrderSerializer,
        {"status": "lost", "lines": [{"sku": "a", "count": 0}]},
        {"status": "paid", "lines": []},
    )
    told = provider.last_call.last_text
    assert 'status: "lost" is not a valid choice.' in told
    assert "lines.0.count: Ensure this value is greater than or equal to 1." in told


@pytest.mark.django_db
def test_a_model_serializer_saves_a_row():
    Group.objects.create(name="taken")
    result, provider = run(GroupSerializer, {"name": "taken"}, {"name": "free"})
    assert "name:" in provider.last_call.last_text
    assert result.output.save().pk
