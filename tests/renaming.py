"""Check that a former public name still works, with a warning that points to its user."""

import warnings

import pytest


def check_former_name(old, present, value, *, file):
    """`old` and `present` must give the same `value`; only `old` warns, about a line in `file`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = value(present())
    with pytest.warns(DeprecationWarning, match="is now called") as caught:
        found = value(old())
    assert found == expected
    assert {warning.filename for warning in caught} == {file}
