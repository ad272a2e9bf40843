"""Training without recorded steps: recording a run of a few steps takes longer than the run."""

import pytest

import calibrant.methods.core.method
from calibrant.bilevel import solve


def train_eagerly(monkeypatch):
    """Let the methods solve their problems with ``compile=None``, whatever they ask for."""
    monkeypatch.setattr(calibrant.methods.core.method, "solve", lambda *a, compile, **k: solve(*a, **k))


@pytest.fixture(autouse=True, scope="module", name="eager")
def eager_training():
    """For every test of a folder whose conftest imports this, and for the fixtures of its modules."""
    with pytest.MonkeyPatch.context() as patch:
        train_eagerly(patch)
        yield
