"""What a record of flipped labels has besides: how well the wrong labels are found."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.metrics import roc_auc_score

from calibrant.experiments.common.keys import Key
from calibrant.experiments.common.records import Prepared
from calibrant.experiments.common.runs import Run
from calibrant.methods import Fitted, suspicion
from calibrant.report.results import Record


def measure(key: Key, run: Run[Prepared]) -> Record:
    """One record."""
    return {**run.record(), "rate": key["rate"], **suspects(run.fitted, run.prepared)}


def suspects(fitted: Fitted, prepared: Prepared) -> dict[str, Any]:
    """How well wrong labels are found, where any were flipped; and which candidate the self-calibrated method took.

    Suspicion is the method's own where it has one, ``1 − w_i·p(y_i | x_i)`` where it has weights, and
    ``1 − p(y_i | x_i)`` otherwise. ``weight_flipped`` and ``weight_kept`` are mean weights of wrong and right labels.
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
