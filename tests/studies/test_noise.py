"""Tests of the label-noise experiment: suspicion of known flips, and targets with known verdicts."""

import pytest
import torch

from studies.common.records import prepare
from studies.common.synthetic import POOLED
from studies.label_noise import noise_targets, suspects, with_all_seeds
from tests.studies.cases import Fixed


def test_suspicion_is_scored_against_the_labels_that_were_flipped():
    prepared = prepare("blobs-1.3", 0, 0.2)
    flipped = torch.as_tensor(prepared.flipped)
    even = torch.full((700, 5), 0.2, dtype=torch.float64)
    none = {"weight_flipped": None, "weight_kept": None}
    assert suspects(Fixed(even), prepared) == {"suspects_auroc": 0.5, "candidate": None, **none}
    weighted = Fixed(even, sample_weights=1 - flipped.double())
    weights = {"weight_flipped": 0.0, "weight_kept": 1.0}
    assert suspects(weighted, prepared) == {"suspects_auroc": 1.0, "candidate": None, **weights}
    own = Fixed(even, suspicion=1 - flipped.double(), candidate="label noise")
    assert suspects(own, prepared) == {"suspects_auroc": 0.0, "candidate": "label noise", **none}
    clean = prepare("blobs-1.3", 0)
    assert suspects(weighted, clean)["suspects_auroc"] is None


def records(**change):
    """Three seeds of two sets in which every target holds; ``change`` sets bo4sc's values with flipped labels."""
    rows = []
    for rate in (0.0, 0.2):
        for dataset in ("blobs-1.3", "spirals-2.5", "bac"):
            for seed in range(3):
                for method, accuracy, nll in (
                    ("standard", 0.80, 0.60),
                    ("standard-stopped", 0.85, 0.50),
                    ("bo4sc", 0.90, 0.40),
                    ("self-calibrated", 0.91, 0.30),
                ):
                    values = {"accuracy": accuracy, "nll": nll + 0.01 * seed, "suspects_auroc": 0.95}
                    if method == "bo4sc" and rate and dataset != "bac":
                        values |= change
                    rows.append({"rate": rate, "dataset": dataset, "method": method, "seed": seed, **values})
    return rows


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"accuracy": 0.83}, [0]),
        ({"nll": 0.7}, [1]),
        ({"suspects_auroc": 0.8}, [2]),
        ({"nll": 0.1}, [3]),
    ],
)
def test_targets_are_judged(change, missed):
    found = noise_targets(records(**change))
    assert [k for k, verdict in enumerate(found) if not verdict.holds] == missed
    assert all("bac" not in verdict.shown for verdict in found)


def test_means_over_fewer_seeds_are_not_tabled():
    found = records()
    some = [{**r, "method": POOLED} for r in found if r["method"] == "bo4sc" and (r["dataset"] == "bac" or r["seed"])]
    kept = with_all_seeds([r for r in [*found, *some] if r["rate"] == 0.2])
    assert {r["dataset"] for r in kept if r["method"] == POOLED} == {"bac"}
    assert len(kept) == 36 + 3


@pytest.mark.parametrize("nll", [0.3, 0.6])
def test_the_pool_has_its_own_target(nll):
    rows = records()
    rows += [{**r, "method": POOLED, "nll": nll + 0.01 * r["seed"]} for r in rows if r["method"] == "bo4sc"]
    *others, pooled = noise_targets(rows)
    assert pooled.statement.startswith(f"{POOLED}: NLL not significantly above")
    assert pooled.holds is (nll < 0.4)
    assert all(verdict.holds for verdict in others)


@pytest.mark.parametrize(
    ("lost", "open_ones"), [({"accuracy": None}, [0]), ({"nll": None}, [1]), ({"suspects_auroc": None}, [2])]
)
def test_unmeasured_targets_stay_open(lost, open_ones):
    found = noise_targets(records(**lost))
    assert [k for k, verdict in enumerate(found) if verdict.word == "not measured"] == open_ones
    assert [verdict.word for verdict in found].count("holds") == 3
    assert all("unknown on blobs-1.3 20%" in found[k].note for k in open_ones)
