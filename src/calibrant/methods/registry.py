"""The table of methods by name; used by estimators, experiments, the command line and the tests."""

from __future__ import annotations

from dataclasses import dataclass

from calibrant.methods.base import Method
from calibrant.methods.baselines import STOPPED, Calibrated, Ensemble
from calibrant.methods.bo4sc import BO4SC
from calibrant.methods.instance_weights import InstanceWeights
from calibrant.methods.self_calibrated import SelfCalibrated
from calibrant.methods.standard import Standard


@dataclass(frozen=True)
class Entry:
    """A method with its settings, and a one-line summary."""

    method: Method
    summary: str


METHODS: dict[str, Entry] = {
    "standard": Entry(Standard(), "cross-entropy for a fixed number of epochs, as published"),
    "standard-stopped": Entry(STOPPED, "cross-entropy, returned to its best validation loss"),
    "isotonic": Entry(
        Calibrated("isotonic-confidence"),
        "standard, then isotonic regression of the confidence on the validation part, as published",
    ),
    "temperature": Entry(Calibrated("temperature"), "standard, then temperature scaling on the validation part"),
    "isotonic-stopped": Entry(
        Calibrated("isotonic-confidence", STOPPED), "standard-stopped, then isotonic regression of the confidence"
    ),
    "temperature-stopped": Entry(Calibrated("temperature", STOPPED), "standard-stopped, then temperature scaling"),
    "label-smoothing": Entry(
        Standard(patience=200, smoothing=0.05), "smoothed labels (ε = 0.05), returned to the best validation loss"
    ),
    "focal": Entry(Standard(patience=200, gamma=1.0), "focal loss (γ = 1), returned to the best validation loss"),
    "ensemble": Entry(Ensemble(), "the mean of five stopped networks"),
    "instance-weights": Entry(
        InstanceWeights(),
        "weights that a network computes from the input, for accurate and stable predictions (Jain & Shenoy 2022)",
    ),
    "bo4sc": Entry(BO4SC(), "a weight per training sample, learned by hypergradients (Sanguin et al. 2024)"),
    "self-calibrated": Entry(
        SelfCalibrated(embedding=None),
        "cross-fitted networks with learned regularisation and, where needed, label noise",
    ),
}
"""``self-calibrated`` uses plain networks, because the data sets of the first paper have two columns and its results
were measured that way. On tables, the networks embed columns and are members of a pool
(:mod:`studies.tables`)."""
