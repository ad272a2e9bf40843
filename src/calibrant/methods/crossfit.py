"""Cross-fitted bilevel training: K networks, each blind to one fold, whose held-out losses together move one φ.

Every label trains K − 1 networks and judges the K-th, so no part of the data is given up for validation, and φ (a few
numbers) answers to all of them at once::

    min_φ  mean_k F_k(φ, θ_k(φ)),     θ_k trained without fold k,  F_k the loss on fold k

The networks' mean is the classifier; what the networks that never saw a sample say of it tells how good it is. With
``repeats`` several are blind to each sample, and their mean is nearer to that of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.bilevel import Solution
from calibrant.data.splits import folds
from calibrant.data.streams import mix
from calibrant.methods.base import Outcome
from calibrant.methods.fitted import network_logits
from calibrant.methods.task import Part, Task


@dataclass(frozen=True)
class Fold:
    """Rows of one sample set: those that a network trains on, those that move φ, and those that only choose."""

    train: Tensor
    judge: Tensor
    choose: Tensor

    @property
    def held(self) -> Tensor:
        """All rows that the network never saw."""
        return torch.cat([self.judge, self.choose])


def deal(
    labels: Tensor,
    number: int,
    *,
    seed: int,
    repeats: int = 1,
    held_from: slice | None = None,
    choose: float = 0.0,
    choose_from: slice | None = None,
) -> list[Fold]:
    """Folds of equal size, each class spread evenly, dealt anew for each repeat.

    Parameters
    ----------
    labels : class indices of all rows
    number : how many folds; fewer where there are fewer rows to deal. One holds out all of ``held_from``
    repeats : how often to deal: so many networks are blind to each row
    held_from : rows that may be held out (default: all); the others train every network
    choose, choose_from : the share of this stretch's rows that is kept from φ, the same ones in every repeat
    """
    every = np.arange(len(labels))
    groups = [(every[held_from or slice(None)], "judge")]
    if choose_from is not None:  # training and validation rows are dealt out apart, so that every fold has both
        special = np.random.default_rng(mix(seed, 0) % 2**31).permutation(every[choose_from])
        cut = int(choose * len(special))
        rest = np.setdiff1d(groups[0][0], special, assume_unique=True)
        groups = [(special[cut:], "judge"), (special[:cut], "choose"), (rest, "judge")]
    number = min(number, max(len(rows) for rows, purpose in groups if purpose == "judge"))
    result = []
    for repeat in range(repeats):
        held: list[dict[str, list[np.ndarray]]] = [{"judge": [], "choose": []} for _ in range(number)]
        for position, (rows, purpose) in enumerate(groups):
            size = len(rows) // number  # equal sizes, so that all networks run as one population
            if size == 0:
                continue
            fold = np.zeros(len(rows), dtype=int)
            if number > 1:
                dealt = mix(seed, repeat, position) % 2**31
                fold = folds(len(rows), number, seed=dealt, stratify=labels[rows].cpu().numpy())
            for k in range(number):
                held[k][purpose].append(rows[fold == k][:size])
        for own in held:
            parts = [np.concatenate(own[purpose] or [every[:0]]) for purpose in ("judge", "choose")]
            train = np.setdiff1d(every, np.concatenate(parts), assume_unique=True)
            result.append(Fold(*(torch.as_tensor(p, device=labels.device) for p in (train, *parts))))
    return result


@dataclass(frozen=True)
class FoldTask(Task):
    """The task of one network: trained on all of ``pooled`` but a fold, which judges it."""

    fold: Fold | None = None
    pooled: Part | None = None
    constants: dict[str, Tensor] = field(default_factory=dict)
    """What the losses read beside the data."""

    def streams(self, wanted: int | None) -> dict[str, Any]:
        """The data of both levels; rows keep their numbers in ``pooled``."""
        assert self.fold is not None
        assert self.val is not None
        levels = (("train", 10, self.train, self.fold.train), ("val", 11, self.val, self.fold.judge))
        return {
            name: part.stream(
                batch_size=part.batch_size(wanted),
                seed=mix(self.seed, purpose),
                index=rows,
                hyper=self.constants,
                augment=name == "train",
            )
            for name, purpose, part, rows in levels
        }


def fold_tasks(
    task: Task, pooled: Part, dealt: Sequence[Fold], constants: dict[str, Tensor] | None = None
) -> list[FoldTask]:
    """One task for each fold. Several networks each start anew; a single one starts from the model as it is."""
    result = []
    for k, fold in enumerate(dealt):
        seed = mix(task.seed, k) % 2**31
        model = task.again(seed).model if len(dealt) > 1 else task.model
        parts = pooled[fold.train], pooled[fold.judge]
        result.append(FoldTask(*parts, task.classes, seed, model, fold, pooled, constants or {}))
    return result


@dataclass(frozen=True)
class CrossFit:
    """What cross-fitting one sample set gave."""

    heads: tuple[Solution, ...]
    folds: tuple[Fold, ...]
    data: Part
    shares: tuple[float, ...] | None = None
    """How much each network counts in a mean; None: all the same."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> CrossFit:
        """The networks that were trained on :func:`fold_tasks`."""
        tasks = [o.task for o in outcomes if isinstance(o.task, FoldTask)]
        data = tasks[0].pooled
        assert data is not None
        return cls(tuple(o.solution for o in outcomes), tuple(t.fold for t in tasks if t.fold is not None), data)

    @cached_property
    def held_out_logits(self) -> Tensor:
        """For each row the mean logits of the networks that never saw it, (n, C); NaN where all of them did."""
        total: Tensor | None = None
        for head, fold, share in zip(self.heads, self.folds, self.shares or [1.0] * len(self.heads), strict=True):
            own = torch.cat([network_logits(head, x) for x, _ in self.data[fold.held].pieces()]).double()
            if total is None:
                total, count = own.new_zeros(len(self.data), own.shape[1]), own.new_zeros(len(self.data), 1)
            total[fold.held] += share * own
            count[fold.held] += share
        assert total is not None
        return total / torch.where(count > 0, count, torch.nan)

    def rows(self, purpose: str) -> Tensor:
        """All rows that served one purpose ("judge", "choose" or "held"), in order."""
        return torch.cat([getattr(fold, purpose) for fold in self.folds]).unique()
