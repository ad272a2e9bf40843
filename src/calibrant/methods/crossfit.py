"""Cross-fitted bilevel training: K networks, each blind to one fold, whose held-out losses together move one φ.

Every label trains K − 1 networks and judges the K-th, so no part of the data is given up for validation, and φ (a few
numbers) answers to all of them at once::

    min_φ  mean_k F_k(φ, θ_k(φ)),     θ_k trained without fold k,  F_k the loss on fold k

The networks' mean is the classifier; predictions for a sample by the network that never saw it say how good it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.bilevel import Adam, Bilevel, Callback, OuterVariable, Solution, Unrolled, cosine
from calibrant.data.splits import folds
from calibrant.data.streams import mix
from calibrant.methods.base import stacked
from calibrant.methods.standard import run
from calibrant.methods.task import Part, batch_size, total_steps
from calibrant.models.mlp import mlp


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
    held_from: slice | None = None,
    choose: float = 0.0,
    choose_from: slice | None = None,
) -> list[Fold]:
    """Folds of equal size, each class spread evenly.

    Parameters
    ----------
    labels : class indices of all rows
    number : how many folds; fewer where there are fewer rows to deal. One holds out all of ``held_from``
    held_from : rows that may be held out (default: all); the others train every network
    choose, choose_from : the share of the held-out rows of this stretch that is kept from φ, for choosing
    """
    total = len(labels)
    every = np.arange(total)
    groups = [every[held_from or slice(None)]]
    if choose_from is not None:  # training and validation rows are dealt out apart, so that every fold has both
        special = every[choose_from]
        groups = [special, np.setdiff1d(groups[0], special, assume_unique=True)]
    number = min(number, max(len(group) for group in groups))
    held: list[list[np.ndarray]] = [[] for _ in range(number)]
    chosen: list[list[np.ndarray]] = [[] for _ in range(number)]
    for position, rows in enumerate(groups):
        if len(rows) < number:
            continue
        fold = np.zeros(len(rows), dtype=int)
        if number > 1:
            fold = folds(len(rows), number, seed=mix(seed, position) % 2**31, stratify=labels[rows].cpu().numpy())
        size = len(rows) // number  # equal sizes, so that all networks run as one population
        for k in range(number):
            own = rows[fold == k][:size]
            own = np.random.default_rng(mix(seed, position, k) % 2**31).permutation(own)
            kept = int(choose * size) if position == 0 and choose_from is not None else 0
            held[k].append(own[kept:])
            chosen[k].append(own[:kept])
    result = []
    for judge, spare in zip(held, chosen, strict=True):
        parts = np.concatenate(judge), np.concatenate(spare)
        train = np.setdiff1d(every, np.concatenate(parts), assume_unique=True)
        result.append(Fold(*(torch.as_tensor(p, device=labels.device) for p in (train, *parts))))
    return result


@dataclass(frozen=True)
class CrossFit:
    """What cross-fitting one sample set gave."""

    heads: tuple[Solution, ...]
    folds: tuple[Fold, ...]
    data: Part

    def held_out_logits(self) -> Tensor:
        """For each row the logits of the network that never saw it, (n, C); NaN for rows that all networks saw."""
        logits = None
        for head, fold in zip(self.heads, self.folds, strict=True):
            own = head.predict(self.data.inputs[fold.held])
            if logits is None:
                logits = torch.full((len(self.data), own.shape[1]), torch.nan, dtype=own.dtype, device=own.device)
            logits[fold.held] = own
        assert logits is not None
        return logits

    def rows(self, kind: str) -> Tensor:
        """All rows that served one purpose: "judge", "choose" or "held"."""
        return torch.cat([getattr(fold, kind) for fold in self.folds])


def crossfit(
    sets: Sequence[Part],
    dealt: Sequence[Sequence[Fold]],
    *,
    classes: int,
    hidden: Sequence[int],
    activation: str,
    outer: Callable[[nn.Module], OuterVariable],
    seeds: Sequence[int],
    rates: Sequence[float],
    outer_rate: float,
    steps: int,
    epochs: int | None,
    default_steps: int,
    size: int | None = None,
    decay: bool = False,
    hyper: Sequence[dict[str, Tensor]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[CrossFit]:
    """Train all folds of all sample sets as one population, φ shared within each set."""
    problems: list[Bilevel] = []
    for position, (data, own) in enumerate(zip(sets, dealt, strict=True)):
        constants = hyper[position] if hyper else {}
        for k, fold in enumerate(own):
            seed = mix(seeds[position], k) % 2**31
            streams = [
                data[rows].stream(
                    batch_size=batch_size(len(rows), size), seed=mix(seed, purpose), index=rows, hyper=constants
                )
                for purpose, rows in ((10, fold.train), (11, fold.judge))
            ]
            if problems:
                problems.append(
                    problems[0].replicate(problems[0].view.draw(seed), train=streams[0], val=streams[1], seed=seed)
                )
                continue
            model = mlp(data.inputs.shape[1], classes, hidden=hidden, activation=activation, seed=seed).to(data.inputs)
            problems.append(Bilevel(model, outer(model), train=streams[0], val=streams[1], seed=seed))
    rows = len(dealt[0][0].train)
    total = total_steps(rows, epochs, batch_size(rows, size), default_steps)
    rate = stacked([r for r, own in zip(rates, dealt, strict=True) for _ in own])
    solutions = run(
        problems,
        hypergradient=Unrolled(steps),
        inner_optimizer=Adam(cosine(rate, total + steps, final=0.05 * rate) if decay else rate),
        outer_optimizer=Adam(outer_rate),
        steps=[total] * len(problems),
        tied=[position for position, own in enumerate(dealt) for _ in own],
        callbacks=callbacks,
    )
    found, start = [], 0
    for data, own in zip(sets, dealt, strict=True):
        found.append(CrossFit(tuple(solutions[start : start + len(own)]), tuple(own), data))
        start += len(own)
    return found
