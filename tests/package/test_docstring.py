"""The example in the docstring of the engine runs."""

import doctest

from calibrant import bilevel


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(bilevel).failed == 0
