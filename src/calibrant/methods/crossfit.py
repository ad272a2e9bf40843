"""Cross-fitted bilevel training: K networks, each blind to one fold, whose held-out losses together move one φ.

Every label trains K − 1 networks and judges the K-th, so no part of the data is given up for validation, and φ (a few
numbers) answers to all of them at once::

    min_φ  mean_k F_k(φ, θ_k(φ)),     θ_k trained without fold k,  F_k the loss on fold k

The networks' mean is the classifier; what the networks that never saw a sample say of it tells how good it is. With
``repeats`` several are blind to each sample, and their mean is nearer to that of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.bilevel import Adam, Bilevel, Callback, Hypergradient, OuterVariable, Solution, cosine
from calibrant.data.splits import folds
from calibrant.data.streams import mix
from calibrant.methods.base import stacked
from calibrant.methods.standard import replicas, run
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
class CrossFit:
    """What cross-fitting one sample set gave."""

    heads: tuple[Solution, ...]
    folds: tuple[Fold, ...]
    data: Part

    @cached_property
    def held_out_logits(self) -> Tensor:
        """For each row the mean logits of the networks that never saw it, (n, C); NaN where all of them did."""
        total: Tensor | None = None
        for head, fold in zip(self.heads, self.folds, strict=True):
            own = head.predict(self.data.inputs[fold.held]).double()
            if total is None:
                total, count = own.new_zeros(len(self.data), own.shape[1]), own.new_zeros(len(self.data), 1)
            total[fold.held] += own
            count[fold.held] += 1
        assert total is not None
        return total / torch.where(count > 0, count, torch.nan)

    def rows(self, purpose: str) -> Tensor:
        """All rows that served one purpose ("judge", "choose" or "held"), in order."""
        return torch.cat([getattr(fold, purpose) for fold in self.folds]).unique()


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
    hypergradient: Hypergradient,
    epochs: int | None,
    default_steps: int,
    size: int | None = None,
    decay: bool = False,
    hyper: Sequence[dict[str, Tensor]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[CrossFit]:
    """Train all folds of all sample sets as one population, φ shared within each set."""
    starts: list[int] = []
    streams: list[dict[str, Any]] = []
    for position, (data, own) in enumerate(zip(sets, dealt, strict=True)):
        constants = hyper[position] if hyper else {}
        for k, fold in enumerate(own):
            starts.append(seed := mix(seeds[position], k) % 2**31)
            streams.append(
                {
                    name: data[rows].stream(
                        batch_size=batch_size(len(rows), size), seed=mix(seed, purpose), index=rows, hyper=constants
                    )
                    for name, purpose, rows in (("train", 10, fold.train), ("val", 11, fold.judge))
                }
            )
    inputs = sets[0].inputs
    model = mlp(inputs.shape[1], classes, hidden=hidden, activation=activation, seed=starts[0]).to(inputs)
    problem = Bilevel(model, outer(model), **streams[0], seed=starts[0])
    problems = [problem, *replicas(problem, starts[1:], streams[1:])]
    rows = len(dealt[0][0].train)
    total = total_steps(rows, epochs, batch_size(rows, size), default_steps, passes=40)
    rate = stacked([r for r, own in zip(rates, dealt, strict=True) for _ in own])
    solutions = run(
        problems,
        hypergradient=hypergradient,
        inner_optimizer=Adam(cosine(rate, total + hypergradient.steps, final=0.05 * rate) if decay else rate),
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
