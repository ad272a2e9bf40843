"""The usual objectives of the two levels. Objectives with equal settings are equal, and they can be pickled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.bilevel.outer_variables import OuterVariable, add_prior
from calibrant.bilevel.outer_variables.base import one_number
from calibrant.data.batch import Batch
from calibrant.losses.classification import cross_entropy
from calibrant.models.network import Network

UserLoss = Callable[[Network, Any, Batch], Tensor]


@dataclass(frozen=True)
class Composed:
    """An inner objective: a per-sample loss with the hooks of an :class:`OuterVariable`."""

    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def __call__(self, net: Network, outer: OuterVariable, batch: Batch) -> Tensor:
        logits = net.logits(batch.inputs)
        targets = outer.targets(batch.targets, batch, logits.shape[-1])
        losses = batch.weighted(self.loss(outer.outputs(logits, batch), targets))
        weighed = outer.weigh(losses, batch)
        if weighed.dim() > 0 and weighed.shape != losses.shape:  # a column of weights would give a table of losses
            raise ValueError(
                f"{type(outer).__name__}.weigh must return one loss per sample, of shape {tuple(losses.shape)}; got "
                f"shape {tuple(weighed.shape)}. Weights of a network with one output need squeeze(-1)."
            )
        penalty = one_number(outer.penalty(net.params), f"{type(outer).__name__}.penalty")
        return weighed.mean() + penalty if isinstance(penalty, Tensor) else weighed.mean()


@dataclass(frozen=True)
class Averaged:
    """An outer objective: the mean of a per-sample loss, plus the outer variable's prior."""

    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        losses = self.loss(net.logits(batch.inputs), batch.targets)
        return add_prior(batch.weighted(losses).mean(), variables)


def composed(loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> UserLoss:
    """The usual inner objective: a per-sample loss, averaged, with the hooks of an :class:`OuterVariable`."""
    return Composed(loss)


def averaged(loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> UserLoss:
    """The usual outer objective: a per-sample loss, averaged, plus the outer variable's prior."""
    return Averaged(loss)


DEFAULT_INNER_LOSS = composed()
DEFAULT_OUTER_LOSS = averaged()
