"""Tests of how numbers, names and times are written in sentences."""

from calibrant.base.words import count, duration, listed


def test_words():
    assert (count(1, "row"), count(2000, "row")) == ("1 row", "2,000 rows")
    assert listed(range(5), 3) == "0, 1, 2 and 2 more"
    assert [duration(seconds) for seconds in (59.4, 90, 3725)] == ["59 s", "1 min 30 s", "1 h 2 min"]
