"""A fake model server for the tests of providers that speak HTTP."""

from __future__ import annotations

import pytest

from tests.fake_model import FakeModel


@pytest.fixture(scope="session")
def running_model():
    with FakeModel() as model:
        yield model


@pytest.fixture
def model(running_model):
    running_model.clear()
    return running_model
