"""Fixtures for the tests of the classifiers."""

import pytest

import calibrant.methods.base
from calibrant.bilevel import solve


@pytest.fixture(autouse=True)
def _eager(request, monkeypatch):
    """Recording a run of a few steps takes longer than the run; a test that wants the default says ``traced``."""
    if "traced" not in request.keywords:
        monkeypatch.setattr(calibrant.methods.base, "solve", lambda *a, compile, **k: solve(*a, **k))
