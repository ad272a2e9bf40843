"""Additional fields of a record with flipped labels: how well the method finds them."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.metrics import roc_auc_score

from calibrant.methods import Fitted, suspicion
from calibrant.report.results import Record
from studies.common.keys import Key
from studies.common.records import Prepared
from studies.common.runs import FinishedRun


def measure(key: Key, run: FinishedRun[Prepared]) -> Record:
    """One record with the rate of flipped labels."""
    return {**run.record(), "rate": key["rate"], **suspects(run.fitted, run.prepared)}


def suspects(fitted: Fitted, prepared: Prepared) -> dict[str, Any]:
    """How well the method finds flipped labels, and which candidate the self-calibrated method chose.

    The score is the method's own suspicion if it has one, else ``1 − w_i·p(y_i | x_i)`` if it has weights, else
    ``1 − p(y_i | x_i)``. ``weight_flipped`` and ``weight_kept`` are the mean weights of wrong and of right labels. The
    values are None if no label was flipped.
    """
    found: dict[str, Any] = dict.fromkeys(("suspects_auroc", "weight_flipped", "weight_kept"))
    found["candidate"] = fitted.extras.get("candidate")
    if fitted.failure or not prepared.flipped.any() or prepared.flipped.all():
        return found
    train, scores, weights = prepared.task.train, *map(fitted.extras.get, ("suspicion", "sample_weights"))
    if weights is not None:
        found["weight_flipped"] = weights[prepared.flipped].mean().item()
        found["weight_kept"] = weights[~prepared.flipped].mean().item()
    if scores is None:
        given = torch.ones(len(train)) if weights is None else weights
        scores = suspicion(given, fitted.probs(train.inputs), train.labels)
    return found | {"suspects_auroc": float(roc_auc_score(prepared.flipped, scores.numpy()))}
