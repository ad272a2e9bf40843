"""Targets with several parts as a table with one column for each data set."""

from studies.common.verdicts import NOTE, Case, judge, places_not_held, targets_table


def test_data_sets_become_columns_and_quantities_rows():
    rates = [(f"{name} (rate × {rate})", name, rate) for name in ("a", "b") for rate in (1, 10)]
    cases = [Case(where, float(rate) + (name == "b"), name == "a" or rate == 1) for where, name, rate in rates]
    verdicts = [
        judge("error", cases, digits=1),
        judge("ECE", [Case("b ECE (points)", 0.5, None)], digits=1),
        judge("NLL", [Case("a (ce)", 1.0, True), Case("b (focal)", 2.0, True)], digits=1, note="over two sets"),
        judge("nothing", []),
    ]
    lines = [" ".join(line.split()) for line in targets_table(verdicts).splitlines() if line]
    assert lines[0] == "| target | quantity | a | b | verdict |"
    assert lines[2:] == [
        "| error | rate × 1 | 1.0 | 2.0 | missed |",
        "| | rate × 10 | 10.0 | **11.0** | |",
        "| ECE | ECE (points) | – | 0.5 (not judged) | not measured |",
        "| NLL | | 1.0 | 2.0 | holds |",
        "| nothing | | – | – | not measured |",
        NOTE,
        "- NLL: ce on a, focal on b; over two sets.",
    ]


def test_notes_name_the_places_and_keep_the_remark():
    verdict = judge("all", [Case("a", 1.0, False), Case("b", None, None), Case("c", 1.0, True)], note="late")
    assert places_not_held(verdict) == "missed on a; unknown on b"
    assert verdict.note == "missed on a; unknown on b; late"
    assert places_not_held(judge("one", [Case("a", 1.0, False), Case("c", 1.0, True)], at_least=1)) == "not on a"
