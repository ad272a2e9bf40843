"""Networks trained with different learning rates; held-out data choose which of them are averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.bilevel import NonFiniteError
from calibrant.data.streams.streams import mix
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.core.method import Method
from calibrant.methods.core.results import Failed, Fitted, Mixture, begun, network_logits
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task

_BASE = AveragedNetwork()
FACTOR = 3.0
"""The factor between neighbouring learning rates."""
MOST = 10
"""The most networks: all of their subsets are compared."""


@dataclass(frozen=True)
class VariedRates(Method):
    """The mean of the best subset of several networks, whose learning rates are found by a search.

    The right learning rate depends on the network, the data and the number of steps, and is rarely known. The first
    network is trained with the rate of ``base``, the second with three times that rate. Every further network extends
    the range of rates by a factor of three, at the end whose network has the lower NLL on the validation part. The
    networks also differ in initial parameters and order of batches. The subset whose mean probability has the lowest
    NLL on the validation part is kept (Caruana et al. 2004, "Ensemble selection", over all subsets instead of
    greedily). A network that diverges is left out.

    Parameters
    ----------
    base : AveragedNetwork
        The method that trains each network.
    members : int
        The number of networks.
    """

    base: AveragedNetwork = _BASE
    members: int = 3

    def __post_init__(self) -> None:
        if not 2 <= self.members <= MOST:
            raise ValueError(f"members must be from 2 to {MOST}, because all subsets are compared; got {self.members}.")

    def rows_at_once(self, task: Task) -> int:
        return self.base.rows_at_once(task)

    @classmethod
    def fit_group(cls, methods: Sequence[VariedRates], tasks: Sequence[Task], **how: Any) -> list[Fitted]:
        return [method.fit_one(task, **how) for method, task in zip(methods, tasks, strict=True)]

    def fit_one(self, task: Task, **how: Any) -> Fitted:
        """Train all networks on one task and keep the best subset."""
        val = task.need_val("The choice among learning rates")
        networks, failures, tried = list[Any](), list[str](), dict[float, float]()
        while len(tried) < self.members:
            rate = next_rate(tried, self.base.rate)
            method, again = replace(self.base, learning_rate=rate), task.again(mix(task.seed, len(tried)) % 2**31)
            tried[rate] = math.inf
            try:
                (fitted,) = AveragedNetwork.fit_group([method], [again], **how)
            except NonFiniteError as error:
                failures.append(str(error))
                continue
            networks += fitted.networks
            probs, labels = held_out_probs(fitted.networks[0], val)
            tried[rate] = _nll([probs], labels, val.sample_weight)
        if not networks:
            return Failed(failures[0], task.n_classes)
        kept = best_subset(begun(networks), val)
        return Mixture(kept, extras={"learning_rates": list(tried)})


def next_rate(tried: Mapping[float, float], first: float) -> float:
    """The next learning rate, given the NLL of the rates that were tried: beyond the better end of their range."""
    if not tried:
        return first
    low, high = min(tried), max(tried)
    return high * FACTOR if len(tried) == 1 or tried[high] < tried[low] else low / FACTOR


def held_out_probs(network: Any, part: Samples) -> tuple[Tensor, Tensor]:
    """A network's probabilities on a part, and the labels, on the CPU."""
    return part.predicted(lambda inputs: network_logits(network, inputs).double().softmax(1))


def best_subset(networks: Sequence[Any], part: Samples) -> tuple[Any, ...]:
    """The subset of networks whose mean probability has the lowest NLL on a part."""
    predictions = [held_out_probs(network, part) for network in networks]
    probs, labels = [member_probs for member_probs, _ in predictions], predictions[0][1]
    numbers = range(len(networks))
    subsets = [subset for size in range(1, len(networks) + 1) for subset in combinations(numbers, size)]
    chosen = min(subsets, key=lambda subset: _nll([probs[k] for k in subset], labels, part.sample_weight))
    return tuple(networks[k] for k in chosen)


def _nll(probs: Sequence[Tensor], labels: Tensor, weights: Tensor | None = None) -> float:
    """The (weighted) mean log-loss of the mean of several networks' probabilities."""
    losses = F.nll_loss(torch.stack(list(probs)).mean(0).clamp_min(1e-300).log(), labels, reduction="none")
    share = torch.ones_like(losses) if weights is None else weights.to(losses)
    return float((share * losses).sum() / share.sum())
