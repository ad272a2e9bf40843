"""Tests of targets on hand-made records: each verdict changes at its limit."""

import math

import pytest

from calibrant.methods import METHODS as REGISTRY
from calibrant.metrics import Estimate
from studies.bo4sc import table1
from studies.bo4sc.targets import bo4sc_targets, self_calibrated_targets, verdicts
from studies.common import words as report_words
from studies.common.synthetic import POOLED, chosen_methods
from studies.common.verdicts import Case, at_least, difference, judge, mean, not_above, ratio
from studies.tables.data import DEVELOPMENT

SETS = ("blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5", "bac")
METHODS = ("standard", "standard-stopped", "isotonic", "ensemble", "bo4sc", "self-calibrated")
GOOD = {"accuracy": 0.9, "ece10": 0.02, "ece15": 0.004, "true_ece": 0.01, "nll": 0.3}


def records(seeds=4, **changes):
    """Records in which every target holds, except for ``changes``: "set method metric" to a value."""
    found = []
    for dataset in SETS:
        for method in METHODS:
            for seed in range(seeds):
                jitter = 0.001 * (-1) ** seed
                record = {"dataset": dataset, "method": method, "seed": seed, **GOOD}
                record["ece10"] += {"standard": 0.05, "isotonic": 0.01}.get(method, 0.0)
                record |= dict.fromkeys(("floor_posterior10", "floor_posterior15"), None if dataset == "bac" else 0.004)
                for place, value in changes.items():
                    where = place.split()
                    if where[:2] == [dataset, method]:
                        record[where[2]] = value
                # The same for all methods: paired differences are exact, unpaired intervals are not.
                record["nll"] = None if record["nll"] is None else record["nll"] + jitter
                found.append(record)
    return found


def words(verdicts):
    return [verdict.word for verdict in verdicts]


def test_all_hold_where_they_should():
    assert words(bo4sc_targets(records())) == ["holds"] * 4
    assert words(self_calibrated_targets(records())) == ["holds"] * 5


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"bac bo4sc ece10": 0.08}, [0, 1]),
        ({f"{name} bo4sc ece10": 0.035 for name in SETS[:2]}, [1]),
        ({f"{name} bo4sc ece10": 0.035 for name in SETS[:3]}, [1, 2]),
        ({"spirals-2.5 bo4sc accuracy": 0.889}, [3]),
        ({"spirals-2.5 bo4sc accuracy": 0.95}, []),
    ],
)
def test_bo4scs_targets(change, missed):
    found = bo4sc_targets(records(**change))
    assert [k for k, verdict in enumerate(found) if verdict.holds is False] == missed
    for k in missed:
        assert "missed on" in found[k].note


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"blobs-1.3 self-calibrated ece15": 0.0051}, [0]),
        ({"blobs-1.3 self-calibrated ece15": 0.0049}, []),
        ({"spirals-3.5 self-calibrated true_ece": 0.0121}, [1]),
        ({"bac self-calibrated true_ece": 0.1}, []),
        ({"bac self-calibrated ece15": 0.007}, [2]),
        ({"bac self-calibrated accuracy": 0.896}, [3]),
        ({"bac standard-stopped nll": 0.29}, [4]),
        ({"bac ensemble nll": 0.1, "bac bo4sc nll": 0.1}, []),
    ],
)
def test_self_calibrateds_targets(change, missed):
    found = self_calibrated_targets(records(**change))
    assert [k for k, verdict in enumerate(found) if verdict.holds is False] == missed


def pooled(change=None):
    """The same records, and those of the pool with a changed value on bac."""
    own = [{**r, "method": POOLED} for r in records() if r["method"] == "self-calibrated"]
    return records() + [{**r, **(change or {})} if r["dataset"] == "bac" else r for r in own]


@pytest.mark.parametrize(
    ("change", "missed"), [({}, []), ({"ece15": 0.007}, [2]), ({"accuracy": 0.896}, [3]), ({"nll": 0.4}, [4])]
)
def test_the_pool_has_the_same_targets_beside_self_calibrateds(change, missed):
    found = verdicts(pooled(change))
    assert [v.statement.split(":")[0] for v in found] == ["bo4sc"] * 4 + ["self-calibrated"] * 5 + [POOLED] * 5
    assert [k for k, verdict in enumerate(found) if verdict.holds is False] == [9 + k for k in missed]


def test_the_pool_is_no_rival_and_must_be_named():
    assert self_calibrated_targets(pooled({"nll": 0.1}))[4].holds
    assert POOLED not in chosen_methods(None)
    assert list(chosen_methods([POOLED, "bo4sc"])) == ["bo4sc", POOLED]
    with pytest.raises(ValueError, match="methods must be among"):
        chosen_methods(["pool"])


def test_the_nearest_rival_is_named():
    verdict = self_calibrated_targets(records(**{"bac standard-stopped nll": 0.29}))[4]
    assert "bac (standard-stopped) 0.0100" in verdict.shown
    assert verdict.note == "missed on bac (standard-stopped)"


def test_unmeasured_baseline_leaves_the_target_open():
    for lost in ("standard", "standard-stopped", "isotonic"):
        verdict = self_calibrated_targets(records(**{f"bac {lost} nll": None}))[4]
        assert verdict.word == "not measured"
        assert verdict.note == f"unknown on bac ({lost})"
    beaten = self_calibrated_targets(records(**{"bac standard nll": None, "bac isotonic nll": 0.29}))[4]
    assert beaten.word == "missed"
    absent = [r for r in records() if (r["dataset"], r["method"]) != ("bac", "isotonic")]
    assert self_calibrated_targets(absent)[4].note == "unknown on bac (isotonic)"
    assert self_calibrated_targets([r for r in records() if r["method"] == "self-calibrated"])[4].holds is None


def test_note_names_limits_within_the_interval():
    found = records()
    for record in found:
        if (record["dataset"], record["method"]) == ("blobs-1.3", "self-calibrated"):
            record["ece15"] = 0.004 * (1.3 + 0.2 * (-1) ** record["seed"])
    verdict = self_calibrated_targets(found)[0]
    assert verdict.holds is False
    assert verdict.note == "missed on blobs-1.3; 1.25 lies within the interval on blobs-1.3"


def test_a_failed_seed_leaves_a_ratio_open():
    found = [{**r, "floor_self15": 0.002} for r in records()]
    assert ratio(found, "ece15", "floor_self15", "bac", "self-calibrated").value == pytest.approx(2.0)
    next(r for r in found if r["method"] == "self-calibrated")["ece15"] = None
    assert math.isnan(ratio(found, "ece15", "floor_self15", "blobs-1.3", "self-calibrated").value)


def test_the_ensemble_is_not_judged():
    assert self_calibrated_targets(records(**{"bac ensemble nll": 0.1}))[4].word == "holds"


def test_one_seed_has_no_significance():
    found = bo4sc_targets(records(seeds=1))
    assert words(found) == ["holds", "not measured", "holds", "holds"]
    assert "unknown on blobs-1.3" in found[1].note


def test_failed_run_leaves_targets_open():
    found = bo4sc_targets(records(**{"bac bo4sc ece10": None}))
    assert words(found) == ["not measured", "not measured", "holds", "holds"]


def test_failed_run_does_not_change_the_target_of_its_set():
    """A failed run has no floor either: its set would count as one without label noise, and the target as held."""
    found = records(**{"spirals-2.5 self-calibrated ece15": 0.1})
    assert words(self_calibrated_targets(found))[0] == "missed"
    for record in found:
        if (record["dataset"], record["method"], record["seed"]) == ("spirals-2.5", "self-calibrated", 0):
            record |= dict.fromkeys((*GOOD, "floor_posterior10", "floor_posterior15"))
    verdicts = self_calibrated_targets(found)
    assert words(verdicts) == ["not measured", "not measured", "holds", "not measured", "not measured"]
    assert all("unknown on spirals-2.5" in verdicts[k].note for k in (0, 1, 3, 4))
    assert "spirals" not in verdicts[2].shown


def test_limits_from_both_sides_and_without_measurement():
    assert [at_least(value, 0.5) for value in (0.4, 0.5, 0.6, math.nan)] == [False, True, True, None]
    assert [not_above(value, 0.5) for value in (0.4, 0.5, 0.6, math.nan)] == [True, True, False, None]
    assert at_least(mean([], "accuracy", "bac", "bo4sc"), 0.9) is None


def test_judge_counts():
    cases = [Case("a", 1.0, True), Case("b", 2.0, False), Case("c", None, None)]
    assert judge("all", cases).holds is False
    assert judge("one", cases, at_least=1).holds is True
    assert judge("two", cases, at_least=2).holds is None
    assert judge("nothing to judge", []).holds is None
    assert judge("all", cases, note="why").note == "missed on b; unknown on c; why"
    assert judge("all", cases, digits=1).shown == "a 1.0; b 2.0; c –"


def test_small_values_show_two_significant_digits():
    """Of the value, or of its interval if that is wider."""
    small = Estimate(-0.000042, -0.000162, 0.000078, 0.95, "by hand")
    narrow = Estimate(-0.000042, -0.000045, -0.000039, 0.95, "by hand")
    assert judge("all", [Case("a", narrow, True)]).shown == "a −0.000042 ± 0.000003"
    cases = [Case("a", small, True), Case("b", 0.00049, True), Case("c", 0.0, True), Case("d", -1e-17, True)]
    assert judge("all", cases).shown == "a −0.00004 ± 0.00012; b 0.00049; c 0.000; d 0.000"
    assert judge("all", [Case("a", -0.0005, True), Case("b", 0.0006, True)], digits=4).shown == "a −0.0005; b 0.0006"
    assert judge("all", [Case("a", 0.0006, True), Case("b", math.nan, None)]).shown == "a 0.001; b –"


def test_tables_of_the_same_records():
    found = records()
    paper = table1.beside_paper(found)
    assert len(paper.rows) == 5 * 3 + 4  # four sets have a floor
    assert paper.rows[0][:3] == ["blobs-1.3", "standard", 0.026]
    assert math.isnan(mean(found, "ece10", "moons", "bo4sc").value)
    assert difference(found, "ece10", "bac", "bo4sc", "standard").value == pytest.approx(-0.05)
    rows = table1.paired(found, "bo4sc", ("ece10", "nll", "accuracy")).rows
    assert [row[:2] for row in rows[:2]] == [["blobs-1.3", "standard"], ["blobs-1.3", "standard-stopped"]]


def test_words_say_what_the_methods_are():
    ours, ensemble = REGISTRY["self-calibrated"].method, REGISTRY["ensemble"].method
    assert (ours.folds, ours.repeats, ours.refit, ensemble.members) == (5, 2, True, 5)
    assert "ten networks (five folds, split twice), the ensemble is five" in " ".join(report_words.UNEQUAL.split())
    assert set(REGISTRY) <= set(report_words.BASELINES)
    assert [name for name in DEVELOPMENT if name not in report_words.DEFAULTS] == []


def test_the_printed_table_is_the_papers():
    """Row sums of Table 1, added by hand from the paper."""
    sums = {
        metric: [round(sum(row[name] for name in SETS), 3) for row in rows.values()]
        for metric, rows in table1.PAPER.items()
    }
    assert sums == {"ece": [0.291, 0.248, 0.137], "accuracy": [4.53, 4.53, 4.508]}
