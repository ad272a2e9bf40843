"""Targets with several parts as a table with one column for each data set."""

from __future__ import annotations

from studies.common.verdicts import NOTE, Case, judge, places_not_held, targets_table


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line]


def test_data_sets_become_columns_and_quantities_rows():
    rates = [(f"{name} (rate × {rate})", name, rate) for name in ("a", "b") for rate in (1, 10)]
    cases = [Case(where, float(rate) + (name == "b"), name == "a" or rate == 1) for where, name, rate in rates]
    found = lines(targets_table([judge("error", cases, digits=1), judge("ECE", [Case("b", 0.5, True)], digits=1)]))
    assert found[0] == "| target | quantity | a | b | verdict |"
    assert found[2:5] == [
        "| error | rate × 1 | 1.0 | 2.0 | missed |",
        "| | rate × 10 | 10.0 | **11.0** | |",
        "| ECE | | – | 0.5 | holds |",
    ]
    assert found[5:] == [NOTE]


def test_differing_quantities_and_long_notes_are_below():
    cases = [Case("a (ce)", 1.0, True), Case("b (focal)", 2.0, True)]
    found = lines(targets_table([judge("NLL", cases, digits=1, note="over two sets")]))
    assert found[0] == "| target | a | b | verdict |"
    assert found[3:] == ["- NLL: ce on a, focal on b; over two sets."]


def test_brackets_inside_a_quantity_stay():
    found = lines(targets_table([judge("γ", [Case("a ECE (points)", 1.0, None)], digits=1)]))
    assert found[2:] == ["| γ | ECE (points) | 1.0 (not judged) | not measured |"]


def test_unmeasured_targets_have_an_empty_row():
    assert lines(targets_table([judge("error", [])]))[2] == "| error | not measured |"


def test_notes_name_the_places_and_keep_the_remark():
    verdict = judge("all", [Case("a", 1.0, False), Case("b", None, None), Case("c", 1.0, True)], note="late")
    assert places_not_held(verdict) == "missed on a; unknown on b"
    assert verdict.note == "missed on a; unknown on b; late"
    assert places_not_held(judge("one", [Case("a", 1.0, False), Case("c", 1.0, True)], at_least=1)) == "not on a"
