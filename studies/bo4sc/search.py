"""Score settings of BO4SC on validation points that do not move the weights; test data are never used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.base.classes import log_of_others
from calibrant.bilevel import Callback, Run
from calibrant.methods import BO4SC, Samples, Task, fit_all
from calibrant.metrics import ece
from studies.common.keys import Key
from studies.common.records import prepare
from studies.common.runs import progress
from studies.report import Record

FIRST_SEED = 10_000
HELD_OUT = 100


@dataclass(frozen=True)
class Search:
    """A job that trains settings as one population, each with every seed, and makes one record per setting.

    A key has the fields ``dataset``, ``epochs`` and the other settings. The scores of shorter trainings are taken
    during longer ones.
    """

    keys: tuple[Key, ...]
    seeds: int
    device: torch.device

    def __call__(self) -> dict[Key, Record]:
        epochs = sorted({int(key["epochs"]) for key in self.keys})
        trained = list(dict.fromkeys(_without_epochs(key) for key in self.keys))
        jobs: list[tuple[BO4SC, Task]] = []
        held: list[Samples] = []
        for fields in map(dict, trained):
            method = BO4SC(**arguments({**fields, "epochs": epochs[-1]}))
            for task, part in (search_task(fields["dataset"], FIRST_SEED + k) for k in range(self.seeds)):
                jobs.append((method, task))
                held.append(part)
        trajectory = Trajectory(epochs, held)
        fit_all(
            jobs,
            device=self.device,
            callbacks=lambda description: [trajectory, *progress(description)],
            on_group=trajectory.population,
            n_jobs=1,  # a job runs in one process
        )
        found: dict[Key, Record] = {}
        for key in self.keys:
            first = trained.index(_without_epochs(key)) * self.seeds
            positions = range(first, first + self.seeds)
            logits = torch.stack([trajectory.logits[p, int(key["epochs"])] for p in positions])
            found[key] = dict(key.fields) | score(logits, torch.stack([held[p].labels for p in positions]))
        return found


def _without_epochs(key: Key) -> tuple[tuple[str, Any], ...]:
    return tuple(field for field in key.fields if field[0] != "epochs")


def arguments(setting: Mapping[str, Any]) -> dict[str, Any]:
    """A setting of the grid as arguments of the method."""
    return {
        "steps": int(setting["steps"]),
        "outer_learning_rate": float(setting["outer_learning_rate"]),
        "alpha": float(setting["alpha"]),
        "hidden": (int(setting["width"]),) * 2,
        "epochs": int(setting["epochs"]),
        "learning_rate": float(setting["learning_rate"]),
    }


def search_task(name: str, seed: int) -> tuple[Task, Samples]:
    """The task of a seed, whose validation points move the weights, and the held-out points that score the setting."""
    task = prepare(name, seed).task
    val = task.need_val("The grid search")
    cut = len(val) - HELD_OUT
    return Task(task.train, val[:cut], task.n_classes, task.seed), val[cut:]


class Trajectory(Callback):
    """Collects every member's logits on its held-out points after given numbers of epochs.

    Step sizes are constant, so the first 300 epochs of a training of 2,000 epochs are a training of 300 epochs.
    """

    def __init__(self, epochs: Sequence[int], held: Sequence[Samples]) -> None:
        self.epochs, self.held = sorted(set(epochs)), held
        self.logits: dict[tuple[int, int], Tensor] = {}
        """Logits by (position of the job, epochs); NaN if training failed."""
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
