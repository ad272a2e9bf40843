"""Cross-fitted bilevel training: K networks, each blind to one fold, whose held-out losses together move one φ.

Every label trains K − 1 networks and judges the K-th, so no part of the data is given up for validation, and φ (a few
numbers) answers to all of them at once::

    min_φ  mean_k F_k(φ, θ_k(φ)),     θ_k trained without fold k,  F_k the loss on fold k

The networks' mean is the classifier; what the networks that never saw a sample say of it tells how good it is. With
``repeats`` several are blind to each sample, and their mean is nearer to that of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.bilevel import Solution
from calibrant.data.copies import copy_groups, joined
from calibrant.data.splits import folds, group_folds
from calibrant.data.streams import mix
from calibrant.methods.base import Outcome
from calibrant.methods.fitted import network_logits
from calibrant.methods.task import Part, Task, cycled, tensors

USES = ("judge", "choose")


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
    groups: np.ndarray | None = None,
) -> list[Fold]:
    """Folds that hold out every row once, each class spread evenly, dealt anew for each repeat.

    Parameters
    ----------
    labels : class indices of all rows
    number : how many folds; fewer where there are fewer rows or groups to deal. One holds out all of ``held_from``
    repeats : how often to deal: so many networks are blind to each row
    held_from : rows that may be held out (default: all); the others train every network
    choose, choose_from : the share of this stretch's rows that is kept from φ, the same ones in every repeat
    groups : one number per row. Rows of one group are held out together, and no network is trained on a row of a group
        that it is judged by. Sizes of folds then differ as the groups do; without groups by one at most
    """
    every = np.arange(len(labels))
    known = labels.cpu().numpy()
    may_judge = every[held_from or slice(None)]
    sets = [(may_judge, "judge")]
    if choose_from is not None:  # training and validation rows are dealt out apart, so that every fold has both
        special, cut = _special(every[choose_from], choose, groups, seed)
        rest = np.setdiff1d(may_judge, special, assume_unique=True)
        sets = [(special[cut:], "judge"), (special[:cut], "choose"), (rest, "judge")]
    place = _in_rows(known, sets, number) if groups is None else _in_groups(known, sets, number, groups)
    result = []
    for repeat in range(repeats):
        fold, count = place(seed, repeat)
        for k in range(count):
            held = [np.concatenate([r[fold[r] == k] for r, use in sets if use == name] or [every[:0]]) for name in USES]
            seen = np.concatenate(held)
            train = np.setdiff1d(every, seen, assume_unique=True)
            if groups is not None and len(apart := train[~np.isin(groups[train], groups[seen])]):
                train = apart
            result.append(Fold(*(torch.as_tensor(rows, device=labels.device) for rows in (train, *held))))
    return result


def _special(rows: np.ndarray, share: float, groups: np.ndarray | None, seed: int) -> tuple[np.ndarray, int]:
    """Rows in random order, and how many of them are kept for choosing; a group is kept as a whole."""
    generator = np.random.default_rng(mix(seed, 0) % 2**31)
    cut = int(share * len(rows))
    if groups is None:
        return generator.permutation(rows), cut
    codes = np.unique(groups[rows], return_inverse=True)[1]
    rank = generator.permutation(codes.max() + 1)[codes] if len(rows) else codes
    order = np.argsort(rank, kind="stable")
    ends = np.flatnonzero(np.diff(rank[order], append=-1)) + 1  # where a group ends
    whole = ends[ends <= cut]
    return rows[order], int(whole[-1]) if len(whole) else 0


Placed = tuple[np.ndarray, int]
"""The fold of each row, −1 for rows that are never held out, and the number of folds."""
Sets = Sequence[tuple[np.ndarray, str]]


def _in_rows(labels: np.ndarray, sets: Sets, wanted: int) -> Callable[[int, int], Placed]:
    number = min(wanted, max(len(rows) for rows, purpose in sets if purpose == "judge"))

    def place(seed: int, repeat: int) -> Placed:
        found = np.full(len(labels), -1)
        for position, (rows, _) in enumerate(sets):
            dealt = mix(seed, repeat, position) % 2**31
            if number == 1 or len(rows) == 0:
                found[rows] = 0
            elif len(rows) < number:
                found[rows] = np.random.default_rng(dealt).permutation(number)[: len(rows)]
            else:
                found[rows] = folds(len(rows), number, seed=dealt, stratify=labels[rows])
        return found, number

    return place


def _in_groups(labels: np.ndarray, sets: Sets, wanted: int, groups: np.ndarray) -> Callable[[int, int], Placed]:
    rows = np.concatenate([own for own, _ in sets])
    part = np.concatenate([np.full(len(own), k) for k, (own, _) in enumerate(sets)])
    number = min(wanted, len(np.unique(groups[rows])))
    if number < 2 <= wanted:
        raise ValueError(
            "All rows that may be held out are of one group, so none can be held out while others train; groups must "
            "name at least two."
        )

    def place(seed: int, repeat: int) -> Placed:
        found = np.full(len(labels), -1)
        found[rows] = 0
        if number > 1:
            strata = labels[rows] * len(sets) + part
            found[rows] = group_folds(groups[rows], number, seed=mix(seed, repeat) % 2**31, stratify=strata)
        return found, number

    return place


def folds_of(task: Task, pooled: Part, number: int, repeats: int = 1, choose: float = 0.0) -> list[Fold]:
    """The folds of a task: those that it names, or ones that are dealt here.

    ``pooled`` are its training and validation rows as one. Of the latter, the share ``choose`` is kept from φ.
    """
    if task.splits is not None:
        if task.val is not None:
            raise ValueError("Folds can be named for the training rows only; leave out the validation part.")
        place = pooled.labels.device
        none = torch.empty(0, dtype=torch.long, device=place)
        pairs = [(torch.as_tensor(a, device=place), torch.as_tensor(b, device=place)) for a, b in task.splits]
        return [Fold(train, held, none) for train, held in pairs]
    val = None if task.val is None or not choose else slice(len(task.train), None)
    return deal(
        pooled.labels,
        number,
        seed=task.seed,
        repeats=repeats,
        choose=choose,
        choose_from=val,
        groups=row_groups(pooled),
    )


def row_groups(part: Part) -> np.ndarray | None:
    """Which rows must be in one fold: those of a group, and exact copies, whatever their labels; None if no two."""
    return joined(None if part.groups is None else part.groups.cpu().numpy(), copy_groups(_stored(part)))


def grouped(task: Task) -> Task:
    """The same task, whose parts name all rows that must be in one fold (:func:`row_groups`)."""
    groups = row_groups(task.train if task.val is None else task.train + task.val)
    if groups is None:
        return task
    numbers = torch.as_tensor(groups, device=task.train.labels.device)
    count = len(task.train)
    val = None if task.val is None else replace(task.val, groups=numbers[count:])
    return replace(task, train=replace(task.train, groups=numbers[:count]), val=val)


def _stored(part: Part) -> np.ndarray:
    """Inputs as one array with a row for each sample."""
    found = [t.detach().cpu().reshape(len(t), -1).numpy() for t in tensors(part.inputs)]
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


@dataclass(frozen=True)
class FoldTask(Task):
    """The task of one network: trained on all of ``pooled`` but a fold, which judges it."""

    fold: Fold | None = None
    pooled: Part | None = None
    constants: dict[str, Tensor] = field(default_factory=dict)
    """What the losses read beside the data."""

    def streams(self, wanted: int | None) -> dict[str, Any]:
        """The data of both levels; rows keep their numbers in ``pooled``, those that fill up a part as well."""
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
