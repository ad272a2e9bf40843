"""Tests of the targets of the recommended classifier on tables, on synthetic records."""

import numpy as np
import pytest

from calibrant.metrics import ratio_of_means
from studies.tables.compared import compared, ratios
from studies.tables.page import RIVALS, SINGLE, make_report, to_terminal
from studies.tables.peers import CROSSED, FORMER, OWN, RIVAL
from studies.tables.sheets import cost_sheet
from studies.tables.targets import cost_targets, interval, score_targets
from tests.studies.cases import results_of, scored

LOSSES = {  # two methods of ours, two rivals, three tables
    "a": {OWN: 0.50, FORMER: 0.40, RIVAL: 0.52, "focal": 0.60},
    "b": {OWN: 0.99, FORMER: 1.20, RIVAL: 1.20, "focal": 1.00},
    "c": {OWN: 0.36, FORMER: 0.50, RIVAL: 0.30, "focal": 0.50},
}
METHODS = list(LOSSES["a"])


def records() -> list[dict]:
    return scored([list(own.values()) for own in LOSSES.values()], METHODS, list(LOSSES), seeds=2)


def costs(seconds: float = 1.0, memory: int | None = 500_000_000) -> list[dict]:
    """Single fits of three methods on three tables; ours take ``seconds`` each, and table c twice the memory."""
    about = {"seed": 0, "threads": 2, "failure": None, "device": "cpu"}
    return [
        {"table": table, "method": method, "seconds": seconds if method == OWN else 1.0, **about}
        | {"peak_memory": None if memory is None else memory * (1 + (table == "c"))}
        for table in LOSSES
        for method in (OWN, FORMER, RIVAL)
    ]


def test_our_own_methods_are_not_rivals():
    found = ratios(records(), 0.25)
    assert {each.table: each.rival for each in found} == {"a": RIVAL, "b": "focal", "c": RIVAL}
    assert [each.ratio.value for each in found] == pytest.approx([0.505 / 0.525, 0.995 / 1.005, 0.365 / 0.305])


def test_ratios_have_intervals_that_know_of_the_overlap():
    found = ratios(records(), 0.25)[2].ratio
    alone = ratio_of_means([0.36, 0.37], [0.30, 0.31])
    assert found.value == pytest.approx(alone.value)
    assert found.high - found.value == pytest.approx((alone.high - alone.value) * np.sqrt(0.75 / 0.5))


def test_verdicts_on_scores():
    rank_nll, rank_ece, median, near, most, crossed = score_targets(compared(results_of(records())), 0.25)
    assert (rank_nll.measured, rank_nll.holds) == (pytest.approx(5 / 3), True)
    assert rank_nll.note.startswith("[1.00, 2.00]; best other method: hgb-temperature, 2.50; difference 0.83 [")
    assert rank_ece.holds
    assert (median.measured, median.holds) == (pytest.approx(0.995 / 1.005), True)
    assert (near.measured, near.holds) == (pytest.approx(2 / 3), False)
    assert near.note == "2 of 3 tables; [0.00, 1.00]"
    assert (most.holds, most.note.split("; ")[1]) == (False, f"c, against {RIVAL}")
    assert crossed.holds is None


@pytest.mark.parametrize(("loss", "rank", "holds"), [(0.1, 1.0, True), (0.35, 2.0, False)])
def test_cross_calibration_is_ranked_with_the_same_trees_alone(loss, rank, holds):
    names = [OWN, CROSSED, "hgb-isotonic", "hgb-sigmoid", RIVAL]
    found = score_targets(compared(results_of(scored([[0.01, loss, 0.4, 0.5, 0.3]] * 3, names))), 0.25)[-1]
    assert (found.measured, found.holds) == (rank, holds)
    assert f"best other method: {RIVAL}" in found.note


@pytest.mark.parametrize(("seconds", "share", "holds"), [(1.0, 0.5, True), (1.8, 0.9, True), (3.0, 1.5, False)])
def test_seconds_of_single_fits_are_summed(seconds, share, holds):
    time, *_ = cost_targets([*records(), *costs(seconds)])
    assert (time.measured, time.holds) == (pytest.approx(share), holds)
    assert f"{3 * seconds:.0f} s of 3 s + 3 s on 3 tables" in time.note


def test_memory_is_judged_on_the_worst_table():
    memory = cost_targets(costs())[1]
    assert (memory.measured, memory.holds) == (1000.0, True)
    assert memory.note == "MB, on c; sum over 3 tables: 2000 MB"
    assert cost_targets(costs(memory=500_000_001))[1].holds is False
    assert cost_targets(costs(memory=None))[1].holds is None


@pytest.mark.parametrize(("slow", "holds"), [(2.0, True), (2.1, False)])
def test_prediction_is_judged_on_the_slowest_table_of_our_method(slow, holds):
    found = [
        r | {"predict_seconds": 9.0 if r["method"] != OWN else slow if r["table"] == "b" else 1.0} for r in costs()
    ]
    verdict = cost_targets(found)[2]
    assert (verdict.measured, verdict.holds) == (slow, holds)
    assert verdict.note == f"on b; within the limit on {2 + holds} of 3 tables"
    assert cost_targets(costs())[2].holds is None
    assert [row[-1] for row in cost_sheet(found)[1]] == [1.0, slow, 1.0, 2 + slow, slow]


@pytest.mark.parametrize(("loss", "first"), [(0.9, True), (0.1, False)])
def test_libraries_that_lack_splits_are_ranked_on_complete_tables(loss, first):
    some = scored([[loss]] * 3, ["lightgbm"], ["a", "b", "c"], seeds=2)
    some = [r for r in some if (r["table"], r["seed"]) != ("c", 1)]
    found = compared(results_of([*records(), *some]))
    assert list(found.partial) == ["lightgbm"]
    nll = score_targets(found, 0.25)[6]
    assert (
        nll.statement
        == f"{OWN} has the best mean rank in NLL among all methods and LightGBM, on the tables that it has"
    )
    assert nll.holds is first
    assert "2 tables, 5 methods" in nll.note


def test_seconds_of_scores_do_not_count():
    assert [verdict.holds for verdict in cost_targets(records())] == [None, None, None]
    assert cost_sheet(records())[1] == []


def test_a_table_counts_only_where_all_three_were_timed():
    some = [r for r in costs() if (r["table"], r["method"]) != ("a", RIVAL)]
    assert [row[0] for row in cost_sheet(some)[1]] == ["b", "c", "sum", "largest"]
    assert "on 2 tables" in cost_targets(some)[0].note


def test_without_our_method_nothing_is_judged():
    found = compared(results_of([r for r in records() if r["method"] != OWN]))
    assert [verdict.holds for verdict in score_targets(found, 0.25)] == [None] * 6


def test_an_interval_covers_what_it_is_of():
    low, high = interval(np.arange(100.0), np.mean)
    assert 40 < low < 49.5 < high < 60


def test_the_report_and_the_terminal_show_them():
    results = results_of([*records(), *costs()])
    for text in (make_report(results).to_markdown(), to_terminal(results)):
        assert "NLL nowhere above 1.10 times the best rival's" in text
        assert "among all methods" in text
        assert "seconds, hgb-temperature" in text
        assert RIVALS in text  # every table has a title
        assert SINGLE in text
        assert "4 methods" in text
