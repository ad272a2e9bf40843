"""Cross-fitted bilevel training: K networks, each trained without one fold, share one φ learned from held-out losses.

Every label trains K − 1 networks and evaluates the K-th. No data are set aside for validation, and φ (a few numbers) is
learned from all labels::

    min_φ  mean_k F_k(φ, θ_k(φ)),     θ_k trained without fold k,  F_k the loss on fold k

The classifier is the mean of the networks. It is evaluated on each sample by the networks that were not trained on that
sample. With ``repeats``, several networks are held out for each sample, and their mean is closer to that of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel import Solution
from calibrant.data.streams import mix
from calibrant.methods.adapter import Outcome
from calibrant.methods.dealing import Fold
from calibrant.methods.fitted import network_logits
from calibrant.methods.part import Part, cycled
from calibrant.methods.task import Task


@dataclass(frozen=True)
class FoldTask(Task):
    """The task of one network: train on all of ``pooled`` except one fold, and evaluate on that fold."""

    fold: Fold | None = None
    pooled: Part | None = None
    constants: dict[str, Tensor] = field(default_factory=dict)
    """Constants for the losses."""

    def streams(self, wanted: int | None) -> dict[str, Any]:
        """The data of both levels. All rows, including padding rows, keep their indices in ``pooled``."""
        assert self.fold is not None
        assert self.val is not None
        levels = (("train", 10, self.train, self.fold.train), ("val", 11, self.val, self.fold.judge))
        return {
            name: part.stream(
                batch_size=part.batch_size(wanted),
                seed=mix(self.seed, purpose),
                index=cycled(rows, len(part)),
                hyper=self.constants,
                augment=name == "train",
            )
            for name, purpose, part, rows in levels
        }


def fold_tasks(
    task: Task, pooled: Part, dealt: Sequence[Fold], constants: dict[str, Tensor] | None = None
) -> list[FoldTask]:
    """One task for each fold. Several networks start as in :meth:`Task.again`; a single one as given."""
    result, dense = [], pooled.without_sparse
    for k, fold in enumerate(dealt):
        seed = mix(task.seed, k) % 2**31
        model = task.again(seed).model if len(dealt) > 1 else task.model
        parts = dense[fold.train], dense[fold.judge]
        result.append(FoldTask(*parts, task.n_classes, seed, model, fold, pooled, constants or {}))
    return result


@dataclass(frozen=True)
class CrossFit:
    """The result of cross-fitting on one sample set."""

    heads: tuple[Solution, ...]
    folds: tuple[Fold, ...]
    data: Part
    shares: tuple[float, ...] | None = None
    """The weight of each network in the mean; None: equal weights."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> CrossFit:
        """The result for networks that were trained on :func:`fold_tasks`."""
        tasks = [o.task for o in outcomes if isinstance(o.task, FoldTask)]
        data = tasks[0].pooled
        assert data is not None
        return cls(tuple(o.solution for o in outcomes), tuple(t.fold for t in tasks if t.fold is not None), data)

    @cached_property
    def held_out_logits(self) -> Tensor:
        """The mean logits of the networks that were not trained on a row, (n, C); NaN if all networks were."""
        total: Tensor | None = None
        dense = self.data.without_sparse
        for head, fold, share in zip(self.heads, self.folds, self.shares or [1.0] * len(self.heads), strict=True):
            own = torch.cat([network_logits(head, x) for x, _ in dense[fold.held].pieces()]).double()
            if total is None:
                total, count = own.new_zeros(len(self.data), own.shape[1]), own.new_zeros(len(self.data), 1)
            total[fold.held] += share * own
            count[fold.held] += share
        assert total is not None
        return total / torch.where(count > 0, count, torch.nan)

    def rows(self, purpose: str) -> Tensor:
        """All rows with one purpose ("judge", "choose" or "held"), in order."""
        return torch.cat([getattr(fold, purpose) for fold in self.folds]).unique()
