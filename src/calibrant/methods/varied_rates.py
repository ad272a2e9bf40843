"""Networks trained with different learning rates; held-out data choose which of them are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.bilevel import Callback, NonFiniteError
from calibrant.data.streams import mix
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.base import Compile, Method
from calibrant.methods.baselines import begun
from calibrant.methods.fitted import Failed, Fitted, Mixture, network_logits
from calibrant.methods.task import Part, Task

_BASE = AveragedNetwork()
SPREAD = 3.0
"""Rates range from the base's rate divided by this factor to the base's rate times this factor."""


@dataclass(frozen=True)
class VariedRates(Method):
    """The mean of the best subset of several networks, trained with learning rates around that of ``base``.

    The right learning rate depends on the network and the data, and is rarely known. The networks differ in learning
    rate, initial parameters and order of batches. The subset whose mean probability has the lowest NLL on the
    validation part is kept (Caruana et al. 2004, "Ensemble selection", over all subsets instead of greedily). A network
    that diverges is left out.

    Parameters
    ----------
    base : the method that trains each network
    members : the number of networks; their rates are ``base.learning_rate`` times 1/3 … 3, evenly spaced on a log scale
    """

    base: AveragedNetwork = _BASE
    members: int = 3

    def __post_init__(self) -> None:
        if not 2 <= self.members <= 10:
            raise ValueError(f"members must be from 2 to 10, because all subsets are compared; got {self.members}.")

    def rows_at_once(self, task: Task) -> int:
        return self.base.rows_at_once(task)

    @property
    def rates(self) -> list[float]:
        """The learning rates, those closest to the base's rate first, because an interrupt skips the later ones."""
        factors = [float(f) for f in SPREAD ** np.linspace(-1, 1, self.members)]
        return [self.base.learning_rate * f for f in sorted(factors, key=lambda f: abs(np.log(f)))]

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[VariedRates],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        return [m.fit_one(t, callbacks, compile) for m, t in zip(methods, tasks, strict=True)]

    def fit_one(self, task: Task, callbacks: Sequence[Callback], compile: Compile) -> Fitted:
        """Train all networks on one task and keep the best subset."""
        val, networks, failures = task.need_val("The choice among learning rates"), list[Any](), list[str]()
        for number, rate in enumerate(self.rates):
            own = replace(self.base, learning_rate=rate)
            again = task.again(mix(task.seed, number) % 2**31)
            try:
                (fitted,) = AveragedNetwork.fit_group([own], [again], callbacks, compile)
            except NonFiniteError as error:
                failures.append(str(error))
                continue
            networks += fitted.networks
        if not networks:
            return Failed(failures[0], task.n_classes)
        kept = best_subset(begun(networks), val)
        return Mixture(kept, extras={"learning_rates": self.rates})


def best_subset(networks: Sequence[Any], part: Part) -> tuple[Any, ...]:
    """The subset of networks whose mean probability has the lowest NLL on a part."""
    labels = torch.cat([y.cpu() for _, y in part.pieces()])
    probs = [
        torch.cat([network_logits(network, x).double().softmax(1).cpu() for x, _ in part.pieces()])
        for network in networks
    ]
    numbers = range(len(networks))
    subsets = [own for size in range(1, len(networks) + 1) for own in combinations(numbers, size)]
    chosen = min(subsets, key=lambda own: _nll([probs[k] for k in own], labels))
    return tuple(networks[k] for k in chosen)


def _nll(probs: Sequence[Tensor], labels: Tensor) -> float:
    return float(F.nll_loss(torch.stack(list(probs)).mean(0).clamp_min(1e-300).log(), labels))
