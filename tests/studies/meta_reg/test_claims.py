"""The paper's printed values, its claims, and the targets, on records with known numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from calibrant import metrics
from studies.images import SHIFTS
from studies.meta_reg import claims, measured_claims, targets
from studies.meta_reg.claims import Claim
from studies.meta_reg.figures import diagram
from studies.meta_reg.groups import RunGroup, flat, groups, spread
from studies.meta_reg.measures import BINS, diagrams
from studies.meta_reg.paper import METRICS, claimed_gains, paper, printed, printed_gains, quoted
from studies.meta_reg.plan import known_methods

CALIBRATION = ("ece", "mce", "ace", "classwise_ece")


def record(method: str, seed: int = 0, growth: float = 0.0, **values: Any) -> dict[str, Any]:
    """A run of CIFAR-10. Scores that are not given are 0.05; ``growth`` is that of ECE and MCE over 1,000 bins."""
    setup = {"dataset": "cifar10", "model": "resnet18", "recipe": "short", "epochs": 30, "limit": 0, "failure": None}
    scores = dict.fromkeys(METRICS, 0.05) | {"floor": 0.01, "nll_ts": 0.2, "steady_seconds": 10.0} | values
    bins = {name: [scores[name] + growth * m / BINS[-1] for m in BINS] for name in ("ece", "mce")}
    bins |= {"bins": list(BINS), "ece_floor": [0.04] * len(BINS), "mce_floor": [0.04] * len(BINS)}
    shifts = {name: {"error": 0.1, "ece": 0.1, "nll": 0.3} for name in SHIFTS}
    return setup | {"method": method, "seed": seed, "bins": bins, "shifts": shifts, "curve": {}} | scores


def group_of(*records: dict[str, Any]) -> RunGroup:
    (group,) = groups(records)
    return group


def made(**by_method: dict[str, float]) -> list[RunGroup]:
    """Three seeds of each method, whose values rise by 0.0001 with the seed."""
    return groups(
        record(name.replace("_", "-"), seed, **{k: v + 1e-4 * seed for k, v in values.items()})
        for name, values in by_method.items()
        for seed in range(3)
    )


def claim(group: RunGroup, part: str) -> Claim:
    """The claim about a group whose statement has this part."""
    ((statement, found),) = [(s, own) for s, own in measured_claims.CLAIMS.items() if part in s]
    return found.judge(statement, group)


def by_statement(found: list[Any], start: str) -> Any:
    (verdict,) = [v for v in found if v.statement.startswith(start)]
    return verdict


def test_printed_tables_are_whole_and_agree_with_each_other() -> None:
    content = paper()
    assert [len(own) for own in content["table1"].values()] == [12, 12, 10]
    for own in (*content["table1"].values(), *content["table2"].values()):
        for method, row in own.items():
            assert method in known_methods()
            assert list(row) == list(METRICS)
    for dataset in ("cifar10", "cifar100"):
        for metric in METRICS:
            assert printed(dataset, "flg-sece", metric) == printed(dataset, "flg-sece", metric, table=2)
        (ours,) = [row for row in quoted(dataset) if row.method == "flg-sece"]
        assert ours.ece == pytest.approx(printed(dataset, "flg-sece", "ece").mean, abs=1e-4)
        assert ours.error == pytest.approx(printed(dataset, "flg-sece", "error").mean, abs=1e-4)
    assert printed("cifar10", "ce", "ece").mean == pytest.approx(0.04056)
    assert printed("cifar10", "ce", "nll").mean == pytest.approx(0.335)
    assert printed("digits", "ce", "ece") is None


def test_papers_mean_gain_contradicts_its_own_table() -> None:
    assert claimed_gains()["ece"] == pytest.approx(0.04198)
    expected = {"ece": 0.04079, "mce": 0.1437, "ace": 0.03917}
    assert printed_gains() == pytest.approx(expected, abs=5e-5)
    assert claims.gains().holds is False


def test_claims_that_need_no_training() -> None:
    found = {own.statement.split(" ")[0]: own.holds for own in claims.computed()}
    assert found["γ-Net"] is True
    assert claims.dirac().holds is claims.unbiased().holds is claims.kernel_bound().holds is False
    assert claims.cheaper((8, 16), repeats=1).measured.endswith("time for 16 predictions")
    for sharpening, most in ((1.0, 0.01), (3.0, 1.0)):
        confidence, correct = claims.made_up(50_000, seed=0, sharpening=sharpening)
        gap = metrics.confidence_gap(confidence=confidence, correct=correct)
        assert abs(gap) < most
        assert (gap > 0.02) == (sharpening > 1)


def test_targets_of_flg_sece_are_judged_by_paired_differences() -> None:
    good = {"ece": 0.02, "gamma_std": 0.4, "gamma_on_bound": 0.0}
    found = targets.targets(made(ce={"ece": 0.03}, flg_sece=good))
    for start in ("ECE below", "ECE not above the paper's 2.14 %", "standard deviation", "fewer than a tenth"):
        assert by_statement(found, f"flg-sece: {start}").holds is True
    # Neither CIFAR-100, nor the other outer learning rates, nor the rival with one γ were run.
    for start in ("flg-sece: ECE not above the paper's 1.94 %", "flg-sece: error within", "Does a γ"):
        assert by_statement(found, start).holds is None
    bad = {"ece": 0.03, "gamma_std": 2.0, "gamma_on_bound": 0.5, "error": 0.053}
    worse = targets.targets(made(ce={"ece": 0.01, "error": 0.05}, flg_sece=bad))
    for start in ("ECE below", "ECE not above the paper's 2.14 %", "standard deviation", "fewer than a tenth"):
        assert by_statement(worse, f"flg-sece: {start}").holds is False
    assert "(rate × 1) 0.30 ± 0.00" in by_statement(worse, "flg-sece: error within 0.7 points").shown
    both = targets.targets(groups(record("flg-sece", dataset=d, ece=0.02) for d in ("cifar10", "cifar100")))
    assert by_statement(both, "flg-sece: ECE not above the paper's 2.14 %").holds is True
    assert by_statement(both, "flg-sece: ECE not above the paper's 1.94 %").holds is False


def test_the_answer_on_gamma_says_where_it_is_worse() -> None:
    found = targets.targets(made(flg_sece={"ece": 0.02, "nll": 0.2}, focal_control={"ece": 0.01, "nll": 0.3}))
    answer = by_statement(found, "Does a γ")
    assert answer.holds is False
    assert "significantly above zero on cifar10 ECE (points)" in answer.note


def test_recommended_is_judged_against_its_rival() -> None:
    settings = {"recommended": {"ece": 0.01, "nll_ts": 0.19}, "ce_average_ts": {"ece": 0.012, "nll": 0.2}, "ce": {}}
    slow = settings | {"recommended": {"ece": 0.02, "steady_seconds": 14.0, "error": 0.06}}
    for values, holds, decided in (
        (settings, True, ("ECE without", "NLL with", "error within", "mean over shifts", "at most 1.3", "ECE below")),
        (slow, False, ("ECE without", "error within", "at most 1.3")),
    ):
        found = targets.targets(made(**values))
        for start in decided:
            assert by_statement(found, f"recommended: {start}").holds is holds, start
    alone = targets.targets(groups(record(name) for name in ("ce", "recommended")))
    assert "one seed on cifar10" in by_statement(alone, "recommended: at most").note
    assert "one seed" not in by_statement(found, "recommended: at most").note


def test_shifts_are_compared_by_the_mean_of_logarithms() -> None:
    double = {name: {"error": 0.1, "ece": 0.2, "nll": 0.3} for name in SHIFTS}
    group = group_of(record("recommended"), record("ce-average-ts", shifts=double))
    assert targets.shift_ratio(group)[""].value == pytest.approx(-math.log(2))


def test_the_floor_is_exceeded_at_one_number_of_bins() -> None:
    found = targets.targets([group_of(record("recommended", growth=0.012))])
    verdict = by_statement(found, "recommended: ECE below 1.5 ×")
    assert verdict.holds is False
    assert verdict.note == "missed on cifar10 (1000 bins)"
    assert "cifar10 (1000 bins) 1.55" in verdict.shown


def test_setups_are_kept_apart_and_failures_left_out() -> None:
    long = {"recipe": "paper", "epochs": 350}
    found = groups([record("ce", **long), record("ce", dataset="cifar100"), record("ce"), record("ce", 1, failure="x")])
    assert [group.name for group in found] == ["cifar10", "cifar10 (paper recipe)", "cifar100"]
    assert found[0].failed == ("ce, seed 1",)
    assert "350 epochs" in found[1].label


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({}, "cifar10"),
        ({"epochs": 2}, "cifar10 (2 epochs)"),
        ({"model": "small-cnn", "limit": 5000}, "cifar10 (small-cnn, 5,000 images)"),
    ],
)
def test_targets_apply_to_full_runs_of_the_default_network(setting: dict[str, Any], name: str) -> None:
    found = groups([record("ce", **setting)])
    assert [group.name for group in found] == [name]
    assert bool(targets.judged(found)) == (name == "cifar10")


def test_measured_claims_say_what_was_not_run() -> None:
    found = measured_claims.measured(made(ce={"ece": 0.03}, mmce={"ece": 0.04}))
    judged = {own.statement.partition(": ")[2] or own.statement: own for own in found}
    assert judged["MMCE is calibrated no better than CE (ECE, points)"].holds is True
    missing = judged["the spread of γ over the test images grows during training (flg-sece)"]
    assert (missing.measured, missing.verdict) == ("not yet measured", "not yet measured")
    assert len(found) == 1 + len(measured_claims.CLAIMS)
    for statement, own in measured_claims.CLAIMS.items():
        assert own.judge(statement, group_of(record("recommended"))).holds is None
    assert "flg-sece-published" in claim(group_of(record("published-relu")), "positive").note


def test_the_mean_gain_is_taken_over_data_sets() -> None:
    found = groups(
        record(method, dataset=name, ece=0.05 + gain, mce=0.1 + gain, ace=0.05 + gain)
        for name, own in (("cifar10", 0.01), ("cifar100", 0.03))
        for method, gain in (("ce-dece", own), ("flg-sece", 0.0))
    )
    gain = measured_claims.gains(found)
    assert gain.holds is True
    assert gain.measured == "ECE 2.00, MCE 2.00, ACE 2.00 over cifar10, cifar100"
    assert "smaller than the paper's: ECE, MCE, ACE; gains by data set: cifar10 ECE 1.00; " in gain.note
    assert measured_claims.gains(groups([record("ce")])).holds is None


def test_ranks_are_those_of_the_worst_metric() -> None:
    best = dict.fromkeys(CALIBRATION, 0.01)
    lowest = "lowest calibration errors"
    assert claim(group_of(record("flg-sece", **best), record("ce")), lowest).holds is True
    worse = claim(group_of(record("flg-sece", **best | {"mce": 0.06}), record("ce")), lowest)
    assert worse.holds is False
    assert worse.measured == "rank among 2: ECE 1, MCE 2, ACE 1, classwise ECE 1"
    assert "MCE 4" in worse.paper  # the paper's own Table 1 has three methods with a lower MCE
    lucky = record("ce", 1, **dict.fromkeys(CALIBRATION, 0.0))  # a seed that the other method lacks
    assert claim(group_of(record("flg-sece", **best), record("ce"), lucky), lowest).holds is True
    low_mce = claim(group_of(record("flg-sece", mce=0.06), record("flg-sece", 1, mce=0), record("ce")), "low MCE")
    assert low_mce.holds is False
    assert "1 common seed" in low_mce.note


def test_ece_is_compared_at_every_number_of_bins() -> None:
    nets = [record(name, ece=0.01) for name in ("flg-dece", "flg-sece")]
    lower = "lower ECE than other methods at every"
    assert claim(group_of(*nets, record("ce")), lower).holds is True
    crossing = claim(group_of(nets[0], record("flg-sece", ece=0.01, growth=0.1), record("ce")), lower)
    assert crossing.holds is False
    assert crossing.measured.startswith("at 5 of 7 numbers of bins")
    assert crossing.measured.endswith("1,000 bins 1.00 and 11.00 (ce 5.00)")
    for growth, holds in ((0.01, True), (0.03, False)):
        steady = group_of(record("flg-sece", growth=growth), record("ce", growth=0.02))
        assert claim(steady, "changes least").holds is holds


@pytest.mark.parametrize(
    ("part", "own", "rival", "scores", "holds"),
    [
        ("TS lowers", "ce-ts", "ce", dict.fromkeys(CALIBRATION, 0.01), True),
        ("TS lowers", "ce-ts", "ce", {"ece": 0.01}, False),
        ("high MCE", "flsd", "ce", {"mce": 0.2}, True),
        ("high MCE", "flsd", "ce", {"mce": 0.01}, False),
        ("MMCE", "mmce", "ce", {"ece": 0.04}, False),
        ("(Table 2", "flg-sece", "flg", {"error": 0.04, **dict.fromkeys(CALIBRATION, 0.01)}, True),
        ("(Table 2", "flg-sece", "flg", {"error": 0.06, **dict.fromkeys(CALIBRATION, 0.01)}, False),
        ("Table 3", "flg-sece", "mbls", {"ece": 0.04, "error": 0.06}, True),
        ("Table 3", "flg-sece", "mbls", {"ece": 0.06, "error": 0.06}, False),
    ],
)
def test_differences_decide(part: str, own: str, rival: str, scores: dict[str, float], holds: bool) -> None:
    runs = [record(name, seed, **(scores if name == own else {})) for name in (own, rival) for seed in (0, 1)]
    assert claim(group_of(*runs), part).holds is holds


def test_claims_quote_the_papers_own_tables() -> None:
    (group,) = made(ce={"ece": 0.03}, mmce={"ece": 0.04}, mixup={"ece": 0.02})
    assert "mmce −0.03" in claim(group, "MMCE").paper  # 4.027 − 4.056
    assert "mixup 8.81" in claim(group, "smoothing").paper
    table_3 = claim(group_of(record("flg-sece"), record("mbls")), "Table 3")
    assert table_3.paper == "very competitive (both lower in its Table 3: mbls, focal-sb-ece)"
    assert "MCE −14.69" in claim(group_of(record("flsd"), record("ce")), "high MCE").paper


def test_notes_name_seeds_and_undecided_differences() -> None:
    runs = [record(name, seed, ece=0.03 + 0.02 * seed) for name in ("focal", "ce") for seed in (0, 1)]
    note = claim(group_of(*runs, record("flsd")), "Focal and FLSD").note
    assert note.startswith("paired over the shared seeds (focal 2, flsd 1); ")
    assert "0 lies within the interval on focal" in note
    assert note.endswith("flsd: one seed, so no interval")


def test_errors_are_compared_on_the_common_seeds() -> None:
    """``ce`` has a lucky third seed, which no other method has."""
    errors = {"ce": (0.06, 0.06, 0.01), "mixup": (0.05, 0.05)}
    found = claim(group_of(*(record(m, s, error=e) for m, own in errors.items() for s, e in enumerate(own))), "mixup")
    assert found.measured.startswith("lowest error: mixup")
    assert "over their 2 common seeds" in found.note


def curve(*levels: float) -> dict[str, list[float]]:
    """A curve of 350 epochs with one ECE before the first drop, after it, before the second drop, and at the end."""
    before, after, later, end = levels
    return {"epoch": list(range(1, 351)), "ece": [before] * 150 + [after] * 50 + [later] * 50 + [end] * 100}


def test_ece_around_a_drop_is_averaged_over_epochs() -> None:
    found = measured_claims.around_first_drop(curve(0.02, 0.01, 0.05, 0.03))
    assert found == pytest.approx((0.02, 0.01, 0.05))
    assert all(map(math.isnan, measured_claims.around_first_drop({"epoch": [1, 2], "ece": [0.1, 0.1]})))


@pytest.mark.parametrize(
    ("flsd", "holds"),
    [((0.05, 0.02, 0.06, 0.0), True), ((0.05, 0.02, 0.03, 0.0), False), ((0.05, 0.06, 0.02, 0), False)],
)
def test_rise_after_the_drop_is_judged_within_the_phase(flsd: tuple[float, ...], holds: bool) -> None:
    ece = {"ce": curve(0.04, 0.01, 0.03, 0.0), "flsd": curve(*flsd)}
    ece["flsd"]["ece"][150:155] = [flsd[1] + 0.001] * 5  # it first settles
    found = claim(group_of(*(record(m, recipe="paper", epochs=350, curve=own) for m, own in ece.items())), "rises")
    assert found.holds is holds
    assert found.measured.startswith("ce 4.00, 1.00, 3.00; flsd 5.00, ")


@pytest.mark.parametrize(
    ("spreads", "holds", "text"),
    [
        ((0.0, 0.0, 0.3, 0.4), True, "0 until epoch 2, where γ is held at its start; 0.300 after epoch 3"),
        ((0.0, 0.0, 0.3, 0.2), False, "0.200 after the last"),
        ((0.1, 0.2), True, "0.100 after epoch 1, 0.200 after the last"),
        ((0.0, 0.0), False, "0.000 after the last"),
    ],
)
def test_the_spread_of_gamma_counts_once_it_moves(spreads: tuple[float, ...], holds: bool, text: str) -> None:
    own = {"epoch": list(range(1, len(spreads) + 1)), "gamma_std": list(spreads)}
    found = claim(group_of(record("flg-sece", curve=own)), "(flg-sece)")
    assert found.holds is holds
    assert text in found.measured


def test_diagram_from_a_record_has_the_predictions_errors() -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500)
    data = diagram({"diagrams": diagrams(probs, labels), "test_size": 500}, 20)
    assert data.ece == pytest.approx(metrics.ece(probs, labels, 20))
    assert data.mce == pytest.approx(metrics.mce(probs, labels, 20))


def test_flat_names_and_spread() -> None:
    found = flat(record("ce"))
    assert found["ece@noise-1"] == 0.1
    assert found["mce_floor/50"] == 0.04
    assert spread([0.01, 0.03], 1, 100) == "2.0 ± 1.4"
    assert spread([0.01], 1, 100) == "1.0"
    assert spread([], 1) is None
