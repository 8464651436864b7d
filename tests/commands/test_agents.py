"""``manage.py agents``, as a user types it."""

import tests.commands.shouting  # noqa: F401 - its agents are listed
from mlango.runtime.registry import registry


def test_agents_are_listed_with_model_tools_and_description(manage):
    out, _, code = manage("agents")

    lines = out.splitlines()
    start = lines.index("commands.Shouter")
    assert lines[start + 1 : start + 4] == [
        "  Shouts.",
        "  model: the default",
        "  tools: shout",
    ]
    assert code == 0


def test_a_site_without_agents_is_told_where_to_write_one(manage, monkeypatch):
    monkeypatch.setattr(registry, "_agents", {})

    out, err, code = manage("agents")

    assert (out, code) == ("", 0)
    assert "This site has no agents" in err
