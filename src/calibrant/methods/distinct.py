"""Rows that occur many times, as one row with the weight of all copies.

The losses are the same. Trees count the rows of a leaf, and the networks' steps and penalties depend on the number of
rows: for them, copies would look like independent evidence. Training is faster, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from calibrant.methods.dealing import copies_of
from calibrant.methods.fitted import Fitted
from calibrant.methods.tabular import bare
from calibrant.methods.task import Task

COPIED = 0.25
"""Copies are merged if this share of the rows repeats an earlier row. Fewer copies change little."""


def merged(task: Task) -> tuple[Task, Tensor | None]:
    """The task with one row for all rows of equal inputs and label, and the new position of each row.

    The task stays as it is, and the positions are None, if there are few copies, if rows repeat by chance
    (:func:`calibrant.data.copies.copy_groups`), if the folds or validation rows are given, or if samples are not rows
    of numbers.
    """
    part = task.train
    if part.groups is None or task.val is not None or task.splits is not None or not bare(task):
        return task, None
    if (copies := copies_of(part)) is None:
        return task, None
    codes = copies * task.n_classes + part.labels.cpu().numpy()
    _, first, place = np.unique(codes, return_index=True, return_inverse=True)
    if len(part) - len(first) < COPIED * len(part):
        return task, None
    order = np.argsort(first)  # distinct rows in the order of their first occurrence
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    positions = torch.as_tensor(rank[place], device=part.labels.device)
    own = (
        part.labels.new_ones(len(part), dtype=torch.float64)
        if part.sample_weight is None
        else part.sample_weight.double()
    )
    total = own.new_zeros(len(first)).index_add_(0, positions, own)
    kept = part[torch.as_tensor(first[order], device=part.labels.device)]
    total *= own.mean() / total.mean()  # as many rows as are left, not as there were
    weights = total.to(part.inputs.dtype if part.sample_weight is None else part.sample_weight.dtype)
    assert kept.groups is not None
    groups = None if len(kept.groups.unique()) == len(kept) else kept.groups
    return replace(task, train=replace(kept, sample_weight=weights, groups=groups)), positions.cpu()


def for_all_rows(fitted: Fitted, positions: Tensor | None) -> Fitted:
    """The result of a merged task, with the values of each row for all of its copies."""
    if positions is None:
        return fitted
    for name in ("held_out", "suspicion"):
        if name in fitted.extras:
            fitted.extras[name] = fitted.extras[name][positions]
    return fitted
