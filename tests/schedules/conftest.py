import pytest

from mlango.runtime.registry import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Let no agent of these tests fire in others."""
    monkeypatch.setattr(registry, "_agents", dict(registry._agents))
