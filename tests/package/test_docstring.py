"""The examples in the docstrings of the public interface run."""

import doctest
import pkgutil

import pytest

from calibrant import bilevel

EXAMPLES = (
    "calibrant.data.load_problem",
    "calibrant.evaluate",
    "calibrant.methods.fit_all",
    "calibrant.metrics.compare",
    "calibrant.metrics.ece",
    "calibrant.metrics.noise_floor",
    "calibrant.posthoc.Auto",
    "calibrant.posthoc.CalibratedModel",
    "calibrant.posthoc.Temperature",
    "calibrant.selective.conformal_rule",
    "calibrant.selective.threshold_for_risk",
    "calibrant.selective.uniform_risk_bound",
)
"""Public names whose docstrings have an example that is tested here."""


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(bilevel).failed == 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_public_name_runs(name):
    """An example imports all that it uses, so that it can be copied."""
    text = pkgutil.resolve_name(name).__doc__
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert len(test.examples) >= 3
    assert doctest.DocTestRunner().run(test).failed == 0
