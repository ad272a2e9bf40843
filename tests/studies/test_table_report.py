"""Tests of the report on tables: ranks, tests between methods, targets on synthetic records, and the page."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from calibrant.metrics import ratio_of_means
from studies.report import Results
from studies.tables.compared import compared, earlier, lower_on, ratios, values_of
from studies.tables.data import DEVELOPMENT, FLOOR
from studies.tables.page import RIVALS, SINGLE, make_report, to_terminal
from studies.tables.peers import CROSSED, FORMER, OWN, RIVAL
from studies.tables.ranks import against, ranking
from studies.tables.sheets import copy_sheet, cost_sheet
from studies.tables.targets import cost_targets, interval, score_targets
from tests.studies.cases import results_of, scored


def rows_of(values, methods="ab"):
    """Records with one seed per table, from an array (tables, methods)."""
    return [
        {"table": f"t{t}", "method": m, "seed": 0, "nll": v, "smooth_ece": v}
        for t, row in enumerate(values)
        for m, v in zip(methods, row, strict=True)
    ]


def test_ranks_share_ties_average_over_tables_and_put_failures_last():
    records = rows_of([[0.1, 0.2, 0.2], [0.3, None, 0.1], [0.1, 0.2, 0.3]], "abc")
    records.append({"table": "half", "method": "a", "seed": 0, "nll": 1.0})
    ranked = ranking(records, "nll", ["a", "b", "c"])
    assert ranked.tables == ["t0", "t1", "t2"]
    assert ranked.ranks.tolist() == [[1, 2.5, 2.5], [2, 3, 1], [1, 2, 3]]
    assert list(ranked.mean_ranks) == ["a", "c", "b"]
    assert ranked.wins("a") == 2


def test_means_are_over_the_seeds_that_all_methods_have():
    """With its second seed, `a` would be ahead, because that split is easier."""
    records = [
        {"table": "t", "method": method, "seed": seed, "nll": value}
        for method, seed, value in (("a", 0, 0.5), ("a", 1, 0.1), ("b", 0, 0.4), ("b", 2, 0.9))
    ]
    ranked = ranking(records, "nll", ["a", "b"])
    assert ranked.means.tolist() == [[0.5, 0.4]]
    nothing_shared = ranking(records[1:], "nll", ["a", "b"])
    assert nothing_shared.tables == []
    assert nothing_shared.means.shape == (0, 2)


def test_tests_against_one_method_are_wilcoxons_with_holms_correction():
    rng = np.random.default_rng(0)
    values = rng.random((12, 3)) + [0.0, 0.3, 5.0]
    ranked = ranking(rows_of(values, "abc"), "nll", ["a", "b", "c"])
    low, high = sorted(wilcoxon(values[:, k] - values[:, 0]).pvalue for k in (1, 2))
    assert sorted(against(ranked, "a").values()) == pytest.approx([2 * low, max(2 * low, high)])
    few = ranking(rows_of(values[:5], "abc"), "nll", ["a", "b", "c"])
    assert against(few, "a") == {"b": None, "c": None}


def test_tables_that_settings_were_tried_on_are_told_apart():
    """Ahead on the eight development tables, behind on seven others: both results are shown."""
    methods = ["self-calibrated", "temperature", "focal"]
    tried, others = sorted(DEVELOPMENT), [f"own-{k}" for k in range(7)]
    values = [[0.1, 0.2 + k / 100, 0.9] for k in range(8)] + [[0.2 + k / 100, 0.1, 0.9] for k in range(7)]
    results = results_of(scored(values, methods, tried + others))
    for text in (to_terminal(results), make_report(results).to_markdown()):
        assert "| NLL: rank, all 15 | NLL: rank, 7 untried |" in text
        row = next(line for line in text.splitlines() if line.startswith("| temperature"))
        assert [cell.strip() for cell in row.split("|")[2:5]] == ["network, baseline", "1.53", "**1.00**"]
        assert "8 of 15" in row
        assert "the 7 tables where no setting was tried: own-0, own-1" in text
    found = compared(results)
    assert {r["table"] for r in found.untried().records} == set(others)


def test_a_users_folder_has_no_tried_tables():
    own, mixed = (results_of(scored([[0.1, 0.2]] * 2, [OWN, "temperature"], names)) for names in (None, ["pima", "x"]))
    texts = to_terminal(own), make_report(own).to_markdown(), make_report(mixed).to_markdown()
    assert ["untried" in text for text in texts] == [False, False, True]
    assert ["How the defaults were found" in text for text in texts] == [False, False, True]


def test_methods_that_lack_splits_are_not_ranked():
    """`late` is best on the one table that it has, where it counts as a rival; its half of another is ignored."""
    records = scored([[0.5, 0.6, 0.4], [0.5, 0.6, 0.1]], [OWN, "focal", "late"], ["a", "adult"], seeds=2)
    records = [r for r in records if (r["table"], r["method"], r["seed"]) != ("adult", "late", 1)]
    found = compared(results_of(records))
    assert (found.methods, found.partial) == ([OWN, "focal"], {"late": 3})
    assert found.rankings()["nll"].mean_ranks == {OWN: 1.0, "focal": 2.0}
    assert found.untried().rankings()["nll"].mean_ranks == {OWN: 1.0, "focal": 2.0}  # though it has all of table a
    assert {each.table: each.rival for each in ratios(found.records, 0.25)} == {"a": "late", "adult": "focal"}
    text = to_terminal(results_of(records))
    assert "Not ranked, because runs are missing: late (3 splits)." in text
    assert "1 not ranked because runs are missing" in text
    without_ours = compared(results_of([r for r in records if r["method"] != OWN]))
    assert (without_ours.methods, without_ours.partial) == (["focal"], {"late": 3})


def test_failed_runs_are_never_best_and_ours_are_infinite():
    records = scored([[0.5, 0.6], [0.5, 0.6]], ["self-calibrated", "focal"], ["a", "b"], seeds=2)
    bad = scored([[0.1], [0.1]], ["isotonic"], ["a", "b"], seeds=2)
    bad[0]["nll"] = None
    (a, b) = ratios([*records, *bad], 0.25)
    assert (a.rival, b.rival) == ("focal", "isotonic")
    records[0]["nll"] = None
    assert ratios(records, 0.25)[0].ratio.value == np.inf
    assert lower_on(values_of(records, "nll"), "focal") == (1, 2)


def test_copies_of_test_rows_are_shown_where_there_are_many():
    """The rival is ahead on all rows because it has seen the copies; without copies, our method is ahead."""
    records = scored([[0.5, 0.4]] * 2, ["self-calibrated", "hgb"], ["clean", "copied"], seeds=2)
    for record in records:
        record["copied"] = 0.3 if record["table"] == "copied" else 0.001
        record["nll_new"] = 0.5 if record["method"] == "self-calibrated" else 1.0
    records += scored([[0.1]] * 2, ["focal"], ["clean", "copied"], seeds=2)
    for record in records[-4:]:
        del record["copied"], record["nll_new"]  # measured before these were counted
    _, rows = copy_sheet(compared(results_of(records)), 0.25)
    ((table, share, every, rival, new, other),) = rows
    assert (table, share, rival, other) == ("copied", 30.0, "hgb", "hgb")
    assert every.value > 1
    assert new.value == 0.5
    assert "ratio, rows without a copy" in to_terminal(results_of(records))


def test_intervals_over_splits_of_one_table_allow_for_overlap():
    """Values 0.01 apart: s = 0.01, three splits, a fifth of the rows for testing, which is a fourth of the rest."""
    results = results_of(scored([[0.1]], ["self-calibrated"], seeds=3))
    half = 4.302653 * 0.01 * np.sqrt(1 / 3 + 1 / 4)
    text = make_report(results).to_markdown()
    assert f"| self-calibrated | 0.110 ± {half:.3f} |" in text
    assert "Nadeau & Bengio 2003" in text


def test_one_table_and_one_method_need_no_ranks():
    record = {"table": "t", "method": "standard", "seed": 0, "failure": "NaN", "clipped": None}
    record |= dict.fromkeys(("accuracy", "nll", "smooth_ece", "ece15", "floor_self15", "brier", "aurc", "seconds"))
    about = {"t": {"rows": 1, "columns": 1, "classes": 2}}
    config = {"methods": {"standard": "…"}, "tables": about, "split": [0.8, 0.2], "nll_floor": FLOOR}
    text = make_report(Results(config, {}, [record])).to_markdown()
    assert "Failed runs" in text
    assert "| standard |" in text


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


def test_only_tables_with_all_costs_count_and_only_our_method_is_judged():
    assert [verdict.holds for verdict in cost_targets(records())] == [None, None, None]  # seconds of scores
    assert cost_sheet(records())[1] == []
    some = [r for r in costs() if (r["table"], r["method"]) != ("a", RIVAL)]
    assert [row[0] for row in cost_sheet(some)[1]] == ["b", "c", "sum", "largest"]
    assert "on 2 tables" in cost_targets(some)[0].note
    others = compared(results_of([r for r in records() if r["method"] != OWN]))
    assert [verdict.holds for verdict in score_targets(others, 0.25)] == [None] * 6


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


def test_records_of_an_earlier_version_are_named():
    records = [r | {"code": "version new"} for r in scored([[0.5, 0.4]] * 2, [OWN, "hgb"])]
    records += [r | {"code": f"version {'old' if r['table'] == 'b' else 'new'}"} for r in costs()]
    results = results_of(records, made_by={OWN: "version new", "hgb": "version new"})
    sentence = "measured with an earlier version of the code"
    assert f"These runs were {sentence}" not in to_terminal(results)
    records[1]["code"] = "version old"
    for text in (to_terminal(results), make_report(results).to_markdown()):
        assert f"These runs were {sentence}: hgb (1 of its runs)." in text
        assert f"The costs of {OWN} were {sentence} on b." in text
    assert earlier(records, {}) == []  # nothing is called earlier in a file without versions
    assert earlier([{"method": "hgb"}], {"hgb": "version 1"})
