"""What all experiments' tests share."""

import pytest

from calibrant.bilevel import solve


@pytest.fixture(autouse=True, scope="module")
def eager():
    """Tracing pays after hundreds of steps; these trainings have ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrant.methods.standard.solve", lambda *a, **k: solve(*a, **{**k, "compile": None}))
        yield
