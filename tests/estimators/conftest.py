import pytest

from tests.eager import train_eagerly


@pytest.fixture(autouse=True)
def _eager(request, monkeypatch):
    """A test that wants the default, recorded steps, has the mark ``traced``."""
    if "traced" not in request.keywords:
        train_eagerly(monkeypatch)
