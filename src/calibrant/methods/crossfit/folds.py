"""Folds of a task's rows: stratified, redrawn for each repeat, and with groups and copies of a row kept together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from calibrant.data.splits.exact_copies import copy_groups, joined
from calibrant.data.splits.stratified import folds, group_folds
from calibrant.data.streams.batch import tensors_of
from calibrant.data.streams.streams import mix
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task, pooled_part


@dataclass(frozen=True)
class Fold:
    """Rows of one sample set: ``train`` trains a network, ``judge`` moves φ, ``choose`` only selects a candidate."""

    train: Tensor
    judge: Tensor
    choose: Tensor

    @property
    def held(self) -> Tensor:
        """All rows that the network was not trained on."""
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
    groups: np.ndarray | Tensor | None = None,
) -> list[Fold]:
    """Stratified folds that hold out every row once; redrawn for each repeat.

    Parameters
    ----------
    labels : class indices of all rows
    number : the number of folds; fewer if there are fewer rows or groups. A single fold holds out all of ``held_from``
    repeats : how often the folds are drawn, which is the number of networks that hold out each row
    held_from : rows that may be held out (default: all); the other rows train every network
    choose, choose_from : the share ``choose`` of the rows ``choose_from`` does not move φ; the same in every repeat
    seed : the seed of the folds
    groups : one number per row. Rows of one group are held out together, and no network is trained on rows of a group
        that evaluates it. The sizes of folds then depend on the groups; without groups they differ by at most one
    """
    every, classes = np.arange(len(labels)), labels.cpu().numpy()
    groups = groups.cpu().numpy() if isinstance(groups, Tensor) else groups
    may_judge = every[held_from or slice(None)]
    sets = [(may_judge, "judge")]
    if choose_from is not None:  # split training and validation rows separately, so that every fold has both
        special, cut = _special(every[choose_from], choose, groups, seed)
        rest = np.setdiff1d(may_judge, special, assume_unique=True)
        sets = [(special[cut:], "judge"), (special[:cut], "choose"), (rest, "judge")]
    rows, part = np.concatenate([s for s, _ in sets]), np.repeat(np.arange(len(sets)), [len(s) for s, _ in sets])
    if groups is None:
        number = min(number, max(len(set_rows) for set_rows, purpose in sets if purpose == "judge"))
    else:
        number = _fewest(number, groups[rows])
    result = []
    for repeat in range(repeats):
        fold = np.full(len(labels), -1)
        if groups is not None and number > 1:
            strata = classes[rows] * len(sets) + part
            fold[rows] = group_folds(groups[rows], number, seed=mix(seed, repeat) % 2**31, stratify=strata)
        else:
            for position, (set_rows, _) in enumerate(sets):
                fold[set_rows] = _fold_of_each(classes[set_rows], number, mix(seed, repeat, position) % 2**31)
        for k in range(number):
            judge, choose_only = (
                np.concatenate([r[fold[r] == k] for r, use in sets if use == name] or [every[:0]])
                for name in ("judge", "choose")
            )
            seen = np.concatenate([judge, choose_only])
            train = np.setdiff1d(every, seen, assume_unique=True)
            if groups is not None and len(apart := train[~np.isin(groups[train], groups[seen])]):
                train = apart
            result.append(Fold(*(torch.as_tensor(rows, device=labels.device) for rows in (train, judge, choose_only))))
    return result


def _fold_of_each(labels: np.ndarray, number: int, seed: int) -> np.ndarray:
    """The fold of each row; fewer rows than folds go to different folds."""
    if number == 1:
        return np.zeros(len(labels), dtype=int)
    if len(labels) < number:
        return np.random.default_rng(seed).permutation(number)[: len(labels)]
    return folds(len(labels), number, seed=seed, stratify=labels)


def _fewest(number: int, groups: np.ndarray) -> int:
    """The number of folds, at most that of the groups."""
    count = len(np.unique(groups))
    if count < 2 <= number:
        raise ValueError(
            "groups must name at least two groups among the rows that may be held out; got one. With one group, no row "
            "can be held out while others train."
        )
    return min(number, count)


def _special(rows: np.ndarray, share: float, groups: np.ndarray | None, seed: int) -> tuple[np.ndarray, int]:
    """Rows in random order, and how many of the first ones are for choosing; groups are not split."""
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


def copies_of(part: Samples) -> np.ndarray | None:
    """The groups of exact copies (:func:`calibrant.data.splits.exact_copies.copy_groups`), by all columns."""
    if part.sparse is not None:
        return copy_groups(part.sparse)
    columns = [t.detach().cpu().reshape(len(t), -1) for t in tensors_of(part.inputs)]
    matrices = [(c.float() if c.dtype == torch.bfloat16 else c).numpy() for c in columns]  # NumPy has no bfloat16
    return copy_groups(matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1))


def grouped(task: Task) -> Task:
    """The same task with ``groups`` of all rows that must share a fold: rows of one group, and exact copies.

    Labels do not matter: copies with different labels share a fold, too.
    """
    pooled = pooled_part(task)
    groups = joined(None if pooled.groups is None else pooled.groups.cpu().numpy(), copies_of(pooled))
    if groups is None:
        return task
    numbers = torch.as_tensor(groups, device=task.train.labels.device)
    count = len(task.train)
    val = None if task.val is None else replace(task.val, groups=numbers[count:])
    return replace(task, train=replace(task.train, groups=numbers[:count]), val=val)
