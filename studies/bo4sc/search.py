"""Score settings of BO4SC on validation points that do not move the weights; test data are never used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from calibrant.base.classes import log_of_others
from calibrant.bilevel import Callback, Run
from calibrant.methods import Job, Samples, Task, fit_all
from calibrant.metrics import ece
from studies.common.records import prepare
from studies.common.runs import progress

FIRST_SEED = 10_000
HELD_OUT = 100


def search_task(name: str, seed: int) -> tuple[Task, Samples]:
    """The task of a seed, whose validation points move the weights, and the held-out points that score the setting."""
    task = prepare(name, seed).task
    val = task.need_val("The grid search")
    cut = len(val) - HELD_OUT
    return Task(task.train, val[:cut], task.n_classes, task.seed), val[cut:]


Logits = dict[tuple[int, int], Tensor]
"""Logits on held-out points, by position of the job and number of epochs; NaN if training failed."""


def trajectories(
    jobs: Sequence[Job], held: Sequence[Samples], epochs: Sequence[int], device: torch.device | str | None = None
) -> Logits:
    """Train jobs in this process; the logits on the held-out points of each job after given numbers of epochs.

    Step sizes are constant, so the first 300 epochs of a training of 2,000 epochs are a training of 300 epochs.
    """
    trajectory = _Trajectory(epochs, held)
    callbacks: Callable[[str], list[Callback]] = lambda description: [trajectory, *progress(description)]  # noqa: E731
    fit_all(jobs, device=device, callbacks=callbacks, on_group=trajectory.population, n_jobs=1)
    return trajectory.logits


class _Trajectory(Callback):
    """Collects every member's logits."""

    def __init__(self, epochs: Sequence[int], held: Sequence[Samples]) -> None:
        self.epochs, self.held = epochs, held
        self.logits: Logits = {}
        self._positions: list[int] = []

    @contextmanager
    def population(self, positions: list[int]) -> Iterator[None]:
        """Note the jobs of the next training; passed as ``fit_all(on_group=…)``."""
        self._positions = positions
        yield

    def on_start(self, run: Run) -> None:
        self._inputs = torch.stack([self.held[p].inputs for p in self._positions]).to(run.phi)

    def on_step(self, run: Run) -> None:
        due = [e for e in self.epochs if -(-e // run.hypergradient.steps) == run.step]
        if not due:
            return
        params = run.state.params if run.is_population else run.state.params.unsqueeze(0)
        view = run.problem.view  # the paper's network has no buffers
        with torch.no_grad():
            every = torch.func.vmap(lambda own, x: view.bind(own, {}, train=False)(x))(params, self._inputs).cpu()
        every[list(run.failures)] = torch.nan
        for position, logits in zip(self._positions, every, strict=True):
            self.logits.update({(position, epochs): logits for epochs in due})


def score(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Scores of one setting from logits (seeds, n, C) and labels (seeds, n): means over seeds, and ``bce`` per seed.

    With the largest probability p̂, ``bce`` is ``−log p̂`` if the prediction is right and ``−log(1 − p̂)`` if it is wrong
    (Eq. (13) of the first paper). 1 − p̂ is the sum over the other classes, which stays exact if p̂ rounds to 1.
    ``ece10`` is computed from the points of all seeds together, because a hundred points are too few. All scores are
    NaN if a training failed.
    """
    if not bool(logits.isfinite().all()):
        return {name: float("nan") for name in ("bce", "nll", "ece10", "accuracy")} | {"bce_by_seed": None}
    log_probs = logits.double().log_softmax(-1)
    top = log_probs.max(-1)
    right = top.indices == labels
    bce = -torch.where(right, top.values, log_of_others(log_probs, top.indices)).mean(-1)
    nll = -log_probs.gather(-1, labels.unsqueeze(-1)).mean()
    return {
        "bce": bce.mean().item(),
        "nll": nll.item(),
        "ece10": float(ece(log_probs.exp().flatten(0, 1), labels.flatten(), bins=10)),
        "accuracy": right.double().mean().item(),
        "bce_by_seed": bce.tolist(),
    }
