"""The interface of outer variables, and chains of several variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from calibrant.data.streams.batch import Batch, Tensors

ONE_LOSS_PER_SAMPLE = "{} needs one loss per sample; got one value. Do not reduce the loss."


class OuterVariable(nn.Module):
    """Base class of the outer variables. It has no effect itself (plain training)."""

    needs_index = False
    """Whether it has values for single samples, so that batches must have sample indices."""
    samples: int | None = None
    """The number of training samples it was made for. None if it has no values for single samples."""
    moves_start = False
    """Whether ``initial`` depends on φ."""

    def initial(self, params: Tensor) -> Tensor:
        """The starting point θ_0, from the module's own parameters as a flat vector."""
        return params

    def targets(self, labels: Tensor, batch: Batch, n_classes: int) -> Tensor:
        """Soft targets for the labels, or the labels themselves."""
        return labels

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        """The weighted per-sample losses, before the mean."""
        return losses

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        """The logits that the training loss sees. The outer loss sees the network's own logits."""
        return logits

    def penalty(self, params: Tensors) -> Tensor | float:
        """A penalty on the network's parameters, added to the mean loss."""
        return 0.0

    def prior(self) -> Tensor | float:
        """A penalty on φ itself, added to the outer loss."""
        return 0.0

    def project(self, values: Tensors) -> Tensors:
        """The nearest allowed values. A pure function, called after each outer step."""
        return values

    def quantities(self, hyper: Tensors) -> Tensors:
        """The quantities that φ represents, by name: weights, rates, coefficients.

        ``hyper`` holds the constants of the training data. By default the quantities are the parameters themselves.
        """
        return dict(self.named_parameters())


class OuterVariables(OuterVariable):
    """Several outer variables, applied in the given order.

    If one of them can be called (a γ-Net), calling the chain calls that one.
    """

    def __init__(self, *parts: OuterVariable) -> None:
        super().__init__()
        for part in parts:
            if not isinstance(part, OuterVariable):
                raise TypeError(f"The parts of OuterVariables must be OuterVariables; got a {type(part).__name__}.")
        self.parts = nn.ModuleList(parts)
        self.needs_index = any(p.needs_index for p in parts)
        self.moves_start = any(p.moves_start for p in parts)

    def forward(self, *args: Any) -> Tensor:
        called = [part for part in self._each() if type(part).forward is not nn.Module.forward]
        if len(called) != 1:
            raise TypeError(
                f"A chain must have exactly one part with a forward method to be called; got {len(called)}."
            )
        return called[0](*args)

    def initial(self, params: Tensor) -> Tensor:
        return self._in_turn("initial", params)

    def targets(self, labels: Tensor, batch: Batch, n_classes: int) -> Tensor:
        return self._in_turn("targets", labels, batch, n_classes)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        return self._in_turn("weigh", losses, batch)

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        return self._in_turn("outputs", logits, batch)

    def _in_turn(self, hook: str, value: Tensor, *arguments: Any) -> Tensor:
        for part in self._each():
            value = getattr(part, hook)(value, *arguments)
        return value

    def penalty(self, params: Tensors) -> Tensor | float:
        return sum((part.penalty(params) for part in self._each()), 0.0)

    def prior(self) -> Tensor | float:
        return sum((part.prior() for part in self._each()), 0.0)

    def project(self, values: Tensors) -> Tensors:
        for position, part in enumerate(self._each()):
            prefix = f"parts.{position}."
            part_values = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
            values = values | {prefix + k: v for k, v in part.project(part_values).items()}
        return values

    def quantities(self, hyper: Tensors) -> Tensors:
        each = [(f"parts.{position}.", part.quantities(hyper)) for position, part in enumerate(self._each())]
        return {prefix + name: value for prefix, part in each for name, value in part.items()}

    def _each(self) -> Iterable[OuterVariable]:
        return self.parts  # type: ignore[return-value]


def add_prior(loss: Tensor, variables: object) -> Tensor:
    """``loss + variables.prior()``. Modules other than an :class:`OuterVariable` have no prior."""
    if not isinstance(variables, OuterVariable):
        return loss
    prior = one_number(variables.prior(), f"{type(variables).__name__}.prior")
    return loss + prior if isinstance(prior, Tensor) else loss


def one_number(value: Tensor | float, name: str) -> Tensor | float:
    """The value of a penalty; an error if it is several values, whose mean or sum would be a guess."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"{name} must return one number; got shape {tuple(value.shape)}. Add up the parts with sum().")
    return value


def of_batch(values: Tensor, batch: Batch, size: int | None, who: str) -> Tensor:
    """The entries of the per-sample ``values`` that belong to the ``size`` samples of the batch."""
    index = batch.require_index(who)
    if size is None:
        raise ValueError(ONE_LOSS_PER_SAMPLE.format(who))
    if isinstance(index, slice) and len(values[index]) != size:
        raise ValueError(f"{who} must be made for the {size} samples of the training set; got {len(values)} samples.")
    return values[index]
