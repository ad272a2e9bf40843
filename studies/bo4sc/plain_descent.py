"""Choose step sizes for plain gradient descent as the inner optimiser of BO4SC, once for all sets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.methods import Fitted, Samples, fit_all
from studies.bo4sc.search import FIRST_SEED, score, search_task
from studies.bo4sc.variants import default_bo4sc, outer_learning_rate
from studies.common.keys import FIRST, digest
from studies.common.runs import progress
from studies.common.store import Store

RATES, FACTORS = (0.03, 0.1, 0.3, 1.0), (1.0, 10.0)
"""Candidates: learning rates, and multiples of η_w."""
SEEDS = 2


def choose_sgd(sets: Sequence[str], *, device: Any = None) -> dict[str, Any]:
    """Choose the step sizes of both levels for plain gradient descent; those of Adam need not suit it.

    The choice has the lowest cross-entropy of the confidence on validation points that did not move the weights, as in
    the grid search.
    """
    base = default_bo4sc()
    settings: list[dict[str, Any]] = [
        {"learning_rate": lr, "outer_learning_rate": factor * outer_learning_rate(base)}
        for lr, factor in itertools.product(RATES, FACTORS)
    ]
    tasks = [search_task(name, FIRST_SEED + k) for name in sets for k in range(SEEDS)]
    jobs = [(replace(base, inner="sgd", **setting), task) for setting in settings for task, _ in tasks]
    fitted = iter(fit_all(jobs, device=device, callbacks=progress))
    losses = [sum(_held_out_loss(next(fitted), part) for _, part in tasks) for _ in settings]
    if np.isnan(losses).all():
        raise ValueError("plain gradient descent failed with every step size; add smaller values to RATES.")
    return settings[int(np.nanargmin(losses))]


def _held_out_loss(fitted: Fitted, part: Samples) -> float:
    logits = fitted.probs(part.inputs).clamp_min(1e-300).log()
    return float("nan") if fitted.failure else score(logits.unsqueeze(0), part.labels.unsqueeze(0))["bce"]


def sgd_search(sets: Sequence[str]) -> dict[str, str]:
    """What the choice of step sizes depends on: a digest of its settings, and the version of the code."""
    tried = [list(sets), list(RATES), list(FACTORS), SEEDS, repr(default_bo4sc())]
    return {"config": digest([repr(tried)]), "code": FIRST}


def stored_sgd(store: Store, sets: Sequence[str]) -> dict[str, Any] | None:
    """The step sizes that an earlier command with the same settings and code chose, or None."""
    search = sgd_search(sets)
    found = [c["config"] for c in store.commands if c["config"].get("sgd_search") == search]
    return next((config["inner_sgd"] for config in found if "inner_sgd" in config), None)
