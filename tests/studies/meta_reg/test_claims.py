"""The paper's printed values, its claims, and the verdicts, on known numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibrant import metrics
from studies.images import SHIFTS
from studies.meta_reg import claims, measured_claims, targets
from studies.meta_reg.figures import diagram
from studies.meta_reg.groups import RunGroup, flat, groups, spread
from studies.meta_reg.measures import diagrams
from studies.meta_reg.paper import METRICS, claimed_gains, paper, printed, printed_gains, quoted
from studies.meta_reg.plan import known_methods
from studies.meta_reg.table_claims import JUDGES
from studies.meta_reg.tables import table2


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
    found = printed_gains()
    assert found["ece"] == pytest.approx(0.04079, abs=5e-6)
    assert found["mce"] == pytest.approx(0.1437, abs=5e-5)
    assert found["ace"] == pytest.approx(0.03917, abs=1e-5)
    assert claims.gains().holds is False


def test_claims_that_need_no_training() -> None:
    assert claims.parameters().holds is True
    assert claims.dirac().holds is False
    assert claims.unbiased().holds is False
    assert claims.kernel_bound().holds is False
    cost = claims.cheaper((8, 16), repeats=1)
    assert cost.measured.endswith("time for 16 predictions")
    assert "n = 8: " in cost.timing
    assert "n = 16: " in cost.timing
    confidence, correct = claims.made_up(50_000, seed=0)
    assert abs(metrics.confidence_gap(confidence=confidence, correct=correct)) < 0.01
    sharp, right = claims.made_up(50_000, seed=0, sharpening=3.0)
    assert metrics.confidence_gap(confidence=sharp, correct=right) > 0.02


def record(method: str, seed: int, **values) -> dict:
    base = {"dataset": "cifar10", "model": "resnet18", "recipe": "short", "epochs": 30, "limit": 0, "failure": None}
    scores = dict.fromkeys(METRICS, 0.05) | {"floor": 0.01, "nll_ts": 0.2, "steady_seconds": 10.0}
    sweep = {"bins": list(targets.SWEEP)}
    sweep |= {name: [0.012] * 7 for name in ("ece", "mce")} | {n: [0.01] * 7 for n in ("ece_floor", "mce_floor")}
    shifts = {name: {"error": 0.1, "ece": 0.1, "nll": 0.3} for name in SHIFTS}
    return base | scores | {"method": method, "seed": seed, "bins": sweep, "shifts": shifts, "curve": {}} | values


def made(**by_method) -> list[RunGroup]:
    """Three seeds of each method, whose values rise by 0.0001 with the seed."""
    return groups(
        record(name.replace("_", "-"), seed, **{k: v + 1e-4 * seed for k, v in values.items()})
        for name, values in by_method.items()
        for seed in range(3)
    )


def by_statement(found, start: str):
    (verdict,) = [v for v in found if v.statement.startswith(start)]
    return verdict


def test_the_first_targets_are_judged_by_paired_differences() -> None:
    found = targets.first(made(ce={"ece": 0.03}, flg_sece={"ece": 0.02, "gamma_std": 0.4, "gamma_on_bound": 0.0}))
    assert by_statement(found, "flg-sece: ECE below").holds is True
    assert by_statement(found, "flg-sece: ECE not above the paper's 2.14 %").holds is True
    assert by_statement(found, "flg-sece: ECE not above the paper's 1.94 %").holds is None  # CIFAR-100 was not run
    assert by_statement(found, "flg-sece: standard deviation").holds is True
    assert by_statement(found, "flg-sece: error within").holds is None  # the other outer learning rates were not run
    assert by_statement(found, "Does a γ").holds is None
    worse = targets.first(made(ce={"ece": 0.01}, flg_sece={"ece": 0.03, "gamma_std": 2.0, "gamma_on_bound": 0.5}))
    for start in ("ECE below", "ECE not above the paper's 2.14 %", "standard deviation", "fewer than a tenth"):
        assert by_statement(worse, f"flg-sece: {start}").holds is False


def test_the_harder_target_has_a_verdict_of_its_own() -> None:
    found = targets.first(groups(record("flg-sece", 0, dataset=d, ece=0.02) for d in ("cifar10", "cifar100")))
    assert by_statement(found, "flg-sece: ECE not above the paper's 2.14 %").holds is True
    assert by_statement(found, "flg-sece: ECE not above the paper's 1.94 %").holds is False


def test_the_answer_on_gamma_says_where_it_is_worse() -> None:
    found = targets.first(made(flg_sece={"ece": 0.02, "nll": 0.2}, focal_control={"ece": 0.01, "nll": 0.3}))
    answer = by_statement(found, "Does a γ")
    assert answer.holds is False
    assert "significantly above zero on cifar10 ECE (points)" in answer.note


def test_recommended_is_judged_against_its_rival() -> None:
    settings = {"recommended": {"ece": 0.01, "nll_ts": 0.19}, "ce_average_ts": {"ece": 0.012, "nll": 0.2}, "ce": {}}
    found = targets.second(made(**settings))
    for start in ("ECE without", "NLL with", "error within", "at most 1.3"):
        assert by_statement(found, f"recommended: {start}").holds is True, start
    slow = targets.second(made(**settings | {"recommended": {"ece": 0.02, "steady_seconds": 14.0, "error": 0.06}}))
    for start in ("ECE without", "error within", "at most 1.3"):
        assert by_statement(slow, f"recommended: {start}").holds is False, start


def test_shifts_are_compared_by_the_mean_of_logarithms() -> None:
    double = {name: {"error": 0.1, "ece": 0.2, "nll": 0.3} for name in SHIFTS}
    (group,) = groups([record("recommended", 0), record("ce-average-ts", 0, shifts=double)])
    assert targets.shift_ratio(group, "recommended", "ce-average-ts").value == pytest.approx(-math.log(2))


def test_third_target_uses_the_mean_ratio_per_number_of_bins() -> None:
    (good,) = targets.third(groups([record("recommended", s) for s in range(2)]))
    assert good.holds is True
    high = record("recommended", 0)
    high["bins"] = high["bins"] | {"ece": [0.012] * 6 + [0.02]}
    (bad,) = targets.third(groups([high]))
    assert bad.holds is False
    assert "1000" in bad.note


def test_setups_are_kept_apart_and_failures_left_out() -> None:
    found = groups([record("ce", 0), record("ce", 0, epochs=350, recipe="paper"), record("ce", 1, failure="NaN")])
    assert [len(group.records) for group in found] == [1, 1]
    assert "350 epochs" in found[1].label


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({}, "cifar10"),
        ({"epochs": 2}, "cifar10 (2 epochs)"),
        ({"model": "small-cnn", "limit": 5000}, "cifar10 (small-cnn, 5,000 images)"),
        ({"recipe": "paper", "epochs": 350}, "cifar10 (paper recipe)"),
    ],
)
def test_targets_apply_to_full_runs_of_the_default_network(setting: dict, name: str) -> None:
    found = groups([record("ce", 0, **setting)])
    assert [group.name for group in found] == [name]
    assert bool(targets.judged(found)) == (name == "cifar10")


def test_gains_of_sece_are_paired_by_seed() -> None:
    (group,) = made(flg_sece={"ece": 0.02}, flg_dece={"ece": 0.03})
    row = table2(group).rows[0]
    assert row[0] == "flg-sece − flg-dece"
    assert row[1] == "3"
    assert row[4].value == pytest.approx(-1.0)  # percentage points
    assert row[4].high - row[4].low == pytest.approx(0.0, abs=1e-9)


def test_measured_claims_say_what_was_not_run() -> None:
    found = measured_claims.measured(made(ce={"ece": 0.03}, mmce={"ece": 0.04}))
    judged = {claim.statement.partition(": ")[2] or claim.statement: claim for claim in found}
    assert judged["MMCE is calibrated no better than CE (ECE, points)"].holds is True
    missing = judged["the spread of γ over the test images grows during training (flg-sece)"]
    assert (missing.measured, missing.verdict) == ("not yet measured", "not yet measured")
    assert len(found) == 8 + len(JUDGES)


def test_the_mean_gain_is_taken_over_data_sets() -> None:
    pairs = [("cifar10", 0.01), ("cifar100", 0.03)]
    found = groups(
        record(method, 0, dataset=name, ece=0.05 + gain, mce=0.1 + gain, ace=0.05 + gain)
        for name, own in pairs
        for method, gain in (("ce-dece", own), ("flg-sece", 0.0))
    )
    gain = measured_claims.gains(found)
    assert gain.holds is True
    assert gain.measured == "ECE 2.00, MCE 2.00, ACE 2.00 over cifar10, cifar100"
    assert "gains by data set: cifar10 ECE 1.00; " in gain.note
    assert "smaller than the paper's: ECE, MCE, ACE" in gain.note
    assert measured_claims.gains(groups([record("ce", 0)])).holds is None


def test_mean_gains_name_data_sets_without_a_clear_gain() -> None:
    gains = {"cifar10": (-0.001, 0.001), "cifar100": (0.05, 0.052)}
    found = groups(
        record(method, seed, dataset=name, **dict.fromkeys(("ece", "mce", "ace"), 0.05 + own * (method == "ce-dece")))
        for name, pair in gains.items()
        for seed, own in enumerate(pair)
        for method in ("ce-dece", "flg-sece")
    )
    gain = measured_claims.gains(found)
    assert gain.holds is True
    assert "0 lies within the interval on cifar10 ECE, cifar10 MCE, cifar10 ACE" in gain.note


def test_claims_quote_the_papers_own_table() -> None:
    (group,) = made(ce={"ece": 0.03}, mmce={"ece": 0.04}, mixup={"ece": 0.02})
    assert "mmce −0.03" in measured_claims.mmce(group).paper  # 4.027 − 4.056
    assert "mixup 8.81" in measured_claims.smoothing(group).paper


def test_largest_errors_are_ranked_on_common_seeds() -> None:
    own = record("flg-sece", 0)
    lucky = record("flg-sece", 1)
    lucky["bins"] = lucky["bins"] | {"mce": [0.001] * 7}
    rival = record("ce", 0)
    rival["bins"] = rival["bins"] | {"mce": [0.011] * 7}
    (group,) = groups([own, lucky, rival])
    claim = measured_claims.low_mce(group)
    assert claim.holds is False
    assert "1 common seed" in claim.note


def curve(*levels: float) -> dict[str, list[float]]:
    """A curve of 350 epochs with one ECE before the first drop, after it, before the second drop, and at the end."""
    before, after, later, end = levels
    return {"epoch": list(range(1, 351)), "ece": [before] * 150 + [after] * 50 + [later] * 50 + [end] * 100}


def test_ece_around_a_drop_is_averaged_over_epochs() -> None:
    found = measured_claims.around_first_drop(curve(0.02, 0.01, 0.05, 0.03))
    assert found == pytest.approx((0.02, 0.01, 0.05))
    assert all(map(math.isnan, measured_claims.around_first_drop({"epoch": [1, 2], "ece": [0.1, 0.1]})))


def test_a_rise_counts_although_ece_first_settles() -> None:
    settling = curve(0.1, 0.07, 0.08, 0.0)
    settling["ece"][150:160] = [0.09] * 10
    ece = {"ce": curve(0.04, 0.010, 0.011, 0.0), "flsd": settling}
    (group,) = groups([record(m, 0, recipe="paper", epochs=350, curve=own) for m, own in ece.items()])
    claim = measured_claims.rises(group)
    assert claim.holds is True
    assert claim.measured.endswith("largest rise: flsd")


@pytest.mark.parametrize(
    ("flsd", "holds"),
    [((0.05, 0.02, 0.06, 0.0), True), ((0.05, 0.02, 0.03, 0.0), False), ((0.05, 0.06, 0.02, 0), False)],
)
def test_rise_after_the_drop_is_judged_within_the_phase(flsd: tuple[float, ...], holds: bool) -> None:
    ece = {"ce": curve(0.04, 0.01, 0.03, 0.0), "flsd": curve(*flsd)}
    (group,) = groups([record(m, 0, recipe="paper", epochs=350, curve=own) for m, own in ece.items()])
    claim = measured_claims.rises(group)
    assert claim.holds is holds
    assert claim.measured.startswith("ce 4.00, 1.00, 3.00; flsd 5.00, ")


def test_diagram_from_a_record_has_the_predictions_errors() -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500)
    data = diagram({"diagrams": diagrams(probs, labels), "test_size": 500}, 20)
    assert data.ece == pytest.approx(metrics.ece(probs, labels, 20))
    assert data.mce == pytest.approx(metrics.mce(probs, labels, 20))


def test_flat_names_and_spread() -> None:
    found = flat(record("ce", 0))
    assert found["ece@noise-1"] == 0.1
    assert found["mce_floor/50"] == 0.01
    assert spread([0.01, 0.03], 1, 100) == "2.0 ± 1.4"
    assert spread([0.01], 1, 100) == "1.0"
    assert spread([], 1) is None
