"""Verdicts on what the paper says about its tables, on records with known numbers."""

from __future__ import annotations

from typing import Any

import pytest

from studies.meta_reg import table_claims
from studies.meta_reg.groups import RunGroup, flat
from studies.meta_reg.measures import BINS

CALIBRATION = ("ece", "mce", "ace", "classwise_ece")


def record(method: str, seed: int = 0, growth: float = 0.0, **scores: float) -> dict[str, Any]:
    values = dict.fromkeys((*CALIBRATION, "error"), 0.05) | scores
    curve = [values["ece"] + growth * bins / BINS[-1] for bins in BINS]
    names = ("ece", "mce", "ece_floor", "mce_floor")
    setup = {"dataset": "cifar10", "model": "resnet18", "recipe": "short", "epochs": 30, "limit": 0}
    return flat(
        {**setup, "method": method, "seed": seed, **values, "bins": {"bins": BINS, **dict.fromkeys(names, curve)}}
    )


def group(*records: dict[str, Any]) -> RunGroup:
    return RunGroup("", "cifar10", list(records))


def test_ranks_are_those_of_the_worst_metric() -> None:
    best = dict.fromkeys(CALIBRATION, 0.01)
    assert table_claims.lowest_errors(group(record("flg-sece", **best), record("ce"))).holds is True
    claim = table_claims.lowest_errors(group(record("flg-sece", **best | {"mce": 0.06}), record("ce")))
    assert claim.holds is False
    assert claim.measured == "rank among 2: ECE 1, MCE 2, ACE 1, classwise ECE 1"
    assert "MCE 4" in claim.paper  # the paper's own Table 1 has three methods with a lower MCE


def test_only_common_seeds_are_compared() -> None:
    lucky = record("ce", 1, **dict.fromkeys(CALIBRATION, 0.0))
    own = record("flg-sece", **dict.fromkeys(CALIBRATION, 0.01))
    assert table_claims.lowest_errors(group(own, record("ce"), lucky)).holds is True


def test_ece_is_compared_at_every_number_of_bins() -> None:
    nets = [record(name, ece=0.01) for name in ("flg-dece", "flg-sece")]
    assert table_claims.ece_over_bins(group(*nets, record("ce"))).holds is True
    crossing = record("flg-sece", ece=0.01, growth=0.1)
    claim = table_claims.ece_over_bins(group(nets[0], crossing, record("ce")))
    assert claim.holds is False
    assert claim.measured.startswith("at 5 of 7 numbers of bins")
    assert claim.measured.endswith("1,000 bins 1.00 and 11.00 (ce 5.00)")
    assert table_claims.ece_over_bins(group(nets[0], record("ce"))).holds is None


def test_growth_is_that_from_the_fewest_to_the_most_bins() -> None:
    steady = group(record("flg-sece", growth=0.01), record("ce", growth=0.02))
    assert table_claims.ece_growth(steady).holds is True
    assert table_claims.ece_growth(group(record("flg-sece", growth=0.02), record("ce"))).holds is False


@pytest.mark.parametrize(
    ("judge", "own", "rival", "scores", "holds"),
    [
        (table_claims.TEMPERATURE, "ce-ts", "ce", dict.fromkeys(CALIBRATION, 0.01), True),
        (table_claims.TEMPERATURE, "ce-ts", "ce", {"ece": 0.01}, False),
        (table_claims.FLSD_MCE, "flsd", "ce", {"mce": 0.2}, True),
        (table_claims.FLSD_MCE, "flsd", "ce", {"mce": 0.01}, False),
        (table_claims.TABLE_2, "flg-sece", "flg", {"error": 0.04, **dict.fromkeys(CALIBRATION, 0.01)}, True),
        (table_claims.TABLE_2, "flg-sece", "flg", {"error": 0.06, **dict.fromkeys(CALIBRATION, 0.01)}, False),
        (table_claims.table_3, "flg-sece", "mbls", {"ece": 0.04, "error": 0.06}, True),
        (table_claims.table_3, "flg-sece", "mbls", {"ece": 0.06, "error": 0.06}, False),
    ],
)
def test_differences_decide(judge: Any, own: str, rival: str, scores: dict[str, float], holds: bool) -> None:
    runs = [record(name, seed, **(scores if name == own else {})) for name in (own, rival) for seed in (0, 1)]
    assert judge(group(*runs)).holds is holds


@pytest.mark.parametrize("judge", table_claims.JUDGES)
def test_claims_without_their_methods_are_not_measured(judge: Any) -> None:
    claim = judge(group(record("recommended")))
    assert claim.holds is None
    assert claim.measured == "not yet measured"


def test_the_papers_tables_are_quoted() -> None:
    claim = table_claims.table_3(group(record("flg-sece"), record("mbls")))
    assert claim.paper == "very competitive (both lower in its Table 3: mbls, focal-sb-ece)"
    assert "MCE −14.69" in table_claims.FLSD_MCE(group(record("flsd"), record("ce"))).paper


def test_notes_count_the_seeds_of_each_pair() -> None:
    runs = [record(name, seed) for name in ("focal", "ce") for seed in (0, 1)]
    claim = table_claims.FOCAL_LOSSES(group(*runs, record("flsd")))
    assert claim.note.startswith("paired over the shared seeds (focal 2, flsd 1); ")
    assert table_claims.TEMPERATURE(group(record("ce"), record("ce-ts"))).note.startswith("paired over 1 seed; ")
