"""Ranks over tables, tests between methods, verdicts, and the report that tells them."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from calibrant.experiments.tables.data import DEVELOPMENT, FLOOR
from calibrant.experiments.tables.page import make_report, rankings, to_terminal, untried, verdicts
from calibrant.experiments.tables.ranks import against, critical_difference, friedman, ranking
from calibrant.report import Results
from tests.experiments.cases import results_of, scored


def rows_of(values, methods="ab"):
    """Records of one seed a table from an array (tables, methods)."""
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
    """With its second seed, a would be ahead for having met an easier split."""
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


def test_the_verdict_compares_mean_ranks_and_says_who_is_next():
    methods = ["self-calibrated", "temperature"]
    records = rows_of([[0.1, 0.2], [0.3, 0.2], [0.1, 0.2]], methods)
    ranked = {m: ranking(records, m, methods) for m in ("nll", "smooth_ece")}
    first = verdicts(ranked)[0]
    assert first.holds
    assert first.measured == pytest.approx(4 / 3)
    assert "temperature, 1.67" in first.note
    turned = {m: ranking(rows_of([[0.2, 0.1]], methods), m, methods) for m in ("nll", "smooth_ece")}
    assert verdicts(turned)[0].holds is False
    alone = {m: ranking(records, m, ["temperature"]) for m in ("nll", "smooth_ece")}
    assert verdicts(alone)[0].holds is None


def test_tables_that_settings_were_tried_on_are_told_apart():
    """Ahead on the eight of development, behind on seven others: the verdict is for all, and says both."""
    methods = ["self-calibrated", "temperature", "ensemble"]
    tried, others = sorted(DEVELOPMENT), [f"own-{k}" for k in range(7)]
    values = [[0.1, 0.2 + k / 100, 0.0] for k in range(8)] + [[0.2 + k / 100, 0.1, 0.0] for k in range(7)]
    results = results_of(scored(values, methods, tried + others))
    for text in (to_terminal(results), make_report(results).to_markdown()):
        assert "| NLL: rank, all 15 | NLL: rank, 7 untried |" in text
        row = next(line for line in text.splitlines() if line.startswith("| temperature") and line.count("|") == 10)
        everywhere = wilcoxon([b - a for a, b, _ in values]).pvalue
        on_others = 2 / 2**7  # seven differences of one sign
        assert [cell.strip() for cell in row.split("|")[2:6]] == [
            "1.53",
            "**1.00**",
            f"{everywhere:.2g}",
            f"{on_others:.2g}",
        ]
        assert "2.00 on 7 tables that no setting was tried on, best of the others there: temperature, 1.00" in text
        assert "told apart there (p < 0.05) from 1 of 1 methods" in text
        assert "and not on 7: own-0, own-1" in text
    records = untried(results.records)
    assert {r["table"] for r in records} == set(others)
    first = verdicts(rankings(results.records, methods[:2]), rankings(records, methods[:2]))[0]
    assert (first.holds, first.measured) == (True, pytest.approx(22 / 15))


def test_a_folder_of_ones_own_has_nothing_to_tell_apart_and_one_of_development_alone_says_so():
    methods = ["self-calibrated", "temperature"]
    own = results_of(scored([[0.1, 0.2]] * 3, methods))
    for text in (to_terminal(own), make_report(own).to_markdown()):
        assert "untried" not in text
        assert "tried on all" not in text
    seen = to_terminal(results_of(scored([[0.1, 0.2]] * 2, methods, ["pima", "adult"])))
    assert "untried" not in seen
    assert "settings were tried on all of these tables" in seen
    assert "How the defaults were found" not in make_report(own).to_markdown()
    few = to_terminal(results_of(scored([[0.1, 0.2]] * 2, methods, ["pima", "mine"])))
    assert (
        "How the defaults were found"
        in make_report(results_of(scored([[0.1, 0.2]] * 2, methods, ["pima", "mine"]))).to_markdown()
    )
    assert "; 1 table, 2 methods" in to_terminal(results_of(scored([[0.1, 0.2]], methods)))
    assert "1.00 on 1 table that no setting was tried on, best of the others there: temperature, 2.00" in few
    assert "too few tables for a test" in few


def test_intervals_over_splits_of_one_table_are_widened_for_their_overlap():
    """Seeds 0.01 apart: s = 0.01, three splits, and a fifth of the rows tested on, a fourth of the rest."""
    results = results_of(scored([[0.1]], ["self-calibrated"], seeds=3))
    half = 4.302653 * 0.01 * np.sqrt(1 / 3 + 1 / 4)
    text = make_report(results).to_markdown()
    assert f"| self-calibrated | 0.110 ± {half:.3f} |" in text
    assert "Nadeau & Bengio 2003" in text


def test_a_report_of_one_table_and_one_method_needs_no_ranks():
    record = {"table": "t", "method": "standard", "seed": 0, "failure": "NaN", "clipped": None}
    record |= dict.fromkeys(("accuracy", "nll", "smooth_ece", "ece15", "floor_self15", "brier", "aurc", "seconds"))
    about = {"t": {"rows": 1, "columns": 1, "classes": 2}}
    config = {"methods": {"standard": "…"}, "tables": about, "split": [0.8, 0.2], "nll_floor": FLOOR}
    text = make_report(Results(config, {}, [record])).to_markdown()
    assert "not measured" in text
    assert "Failed runs" in text
