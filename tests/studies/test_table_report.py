"""Tests of ranks over tables, tests between methods, verdicts, and the report."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from studies.report import Results
from studies.tables.compared import compared, lower_on, ratios, values_of
from studies.tables.data import DEVELOPMENT, FLOOR
from studies.tables.page import make_report, to_terminal
from studies.tables.ranks import against, critical_difference, friedman, ranking
from studies.tables.sheets import copy_sheet, partial_sheet, significance_sheet
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


def test_tests_against_one_method_are_holms_and_friedmans():
    rng = np.random.default_rng(0)
    values = rng.random((12, 3)) + [0.0, 0.3, 5.0]
    ranked = ranking(rows_of(values, "abc"), "nll", ["a", "b", "c"])
    raw = {m: wilcoxon(values[:, k] - values[:, 0]).pvalue for k, m in ((1, "b"), (2, "c"))}
    low, high = sorted(raw.values())
    assert sorted(against(ranked, "a").values()) == pytest.approx([2 * low, max(2 * low, high)])
    n, k, sums = 12, 3, ranked.ranks.sum(0)
    statistic = 12 * (sums**2).sum() / (n * k * (k + 1)) - 3 * n * (k + 1)
    assert friedman(ranked) == pytest.approx(np.exp(-statistic / 2))  # χ² with two degrees of freedom
    few = ranking(rows_of(values[:5], "abc"), "nll", ["a", "b", "c"])
    assert against(few, "a") == {"b": None, "c": None}


def test_the_critical_difference_is_the_published_one():
    """Demšar 2006, Section 3.2.2: four classifiers, 14 data sets, q = 2.569, CD = 1.25."""
    assert critical_difference(14, 4) == pytest.approx(1.25, abs=0.005)


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
    columns, rows = significance_sheet(found)
    everywhere = wilcoxon([b - a for a, b, _ in values]).pvalue
    on_others = 2 / 2**7  # seven differences of one sign
    assert [column.name for column in columns[:3]] == ["method", "NLL: p, all 15", "NLL: p, 7 untried"]
    (row,) = (row for row in rows if row[0] == "temperature")
    assert row[1:3] == [f"{everywhere:.2g}", f"{2 * on_others:.2g}"]


def test_a_users_folder_has_no_tried_tables():
    methods = ["self-calibrated", "temperature"]
    own = results_of(scored([[0.1, 0.2]] * 3, methods))
    for text in (to_terminal(own), make_report(own).to_markdown()):
        assert "untried" not in text
        assert "tried on" not in text.replace("settings tried on it", "")
    assert "How the defaults were found" not in make_report(own).to_markdown()
    mixed = make_report(results_of(scored([[0.1, 0.2]] * 2, methods, ["pima", "mine"])))
    assert "How the defaults were found" in mixed.to_markdown()


def test_methods_that_lack_splits_are_ranked_only_on_complete_tables():
    """`late` is best on the one table that it has; its half of another table is ignored."""
    records = scored([[0.5, 0.6, 0.4], [0.5, 0.6, 0.1]], ["self-calibrated", "focal", "late"], ["a", "b"], seeds=2)
    records = [r for r in records if (r["table"], r["method"], r["seed"]) != ("b", "late", 1)]
    found = compared(results_of(records))
    assert (found.methods, found.partial, len(found.splits)) == (["self-calibrated", "focal"], {"late": 3}, 4)
    assert found.rankings()["nll"].mean_ranks == {"self-calibrated": 1.0, "focal": 2.0}
    assert partial_sheet(found)[1] == [["late", "network, baseline", "3 of 4", "0 of 2"]]
    best = {each.table: each.rival for each in ratios(found.records, 0.25)}
    assert best == {"a": "late", "b": "focal"}
    assert "not measured on every split" in to_terminal(results_of(records))
    without_ours = compared(results_of([r for r in records if r["method"] != "self-calibrated"]))
    assert (without_ours.methods, without_ours.partial) == (["focal"], {"late": 3})


def test_the_same_methods_are_ranked_on_untried_tables():
    """`late` has every split of the untried table, and still is not ranked there: ranks would not be comparable."""
    records = scored([[0.5, 0.6, 0.4]] * 2, ["self-calibrated", "focal", "late"], ["adult", "mine"])
    found = compared(results_of([r for r in records if (r["table"], r["method"]) != ("adult", "late")]))
    assert found.untried().methods == found.methods == ["self-calibrated", "focal"]
    assert found.untried().rankings()["nll"].mean_ranks == {"self-calibrated": 1.0, "focal": 2.0}
    only_late = [r for r in records if r["table"] == "adult" or r["method"] == "late"]
    assert compared(results_of(only_late)).untried() is None
    assert "untried" not in to_terminal(results_of(only_late))


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


def test_missing_rivals_are_named_where_the_targets_are_about_them():
    results = results_of(scored([[0.5, 0.4]] * 2, ["self-calibrated", "hgb-temperature"]))
    assert "Not measured: sklearn-mlp, " in to_terminal(results)
    assert "not ranked because runs are missing" in to_terminal(results)
    assert "Not measured" not in to_terminal(results_of(scored([[0.5, 0.4]] * 2, ["self-calibrated", "focal"])))


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
