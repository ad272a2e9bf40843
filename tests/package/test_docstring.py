"""The examples in the docstrings of the public interface run."""

import doctest
import inspect
import pkgutil
import re

import pytest

from calibrant import bilevel

from .test_vocabulary import own, public

EXAMPLES = (
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


def documented(text):
    """The names in the section Parameters of a docstring; None if it has no such section."""
    found = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        return None
    heads = re.findall(r"^([\w*][\w*, ]*?)(?: :.*)?$", found[1], re.MULTILINE)
    return {name.strip(" *") for head in heads for name in head.split(",")}


def test_parameters_are_documented_as_they_are():
    wrong, checked = {}, 0
    for module, name, value in public():
        if not callable(value) or not own(value):
            continue
        names = documented(inspect.getdoc(value) or "")
        if names is not None:
            checked += 1
            taken = {p for p in inspect.signature(value).parameters if not p.startswith("_")}
            if names != taken:
                wrong[f"{module}.{name}"] = sorted(names ^ taken)
    assert checked > 60
    assert wrong == {}
