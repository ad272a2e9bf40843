"""Outer variables φ: what the outer level may move, as modules with one interface.

An outer variable takes part in the inner objective through any of these hooks, each the identity by default; several
variables are chained by :class:`OuterVariables`::

    θ_0      = outer.initial(params)                        the starting point, Φ_0
    t        = outer.targets(labels, batch, classes)        hard labels to soft targets
    z        = outer.outputs(logits, batch)                 the distribution of the observed labels
    losses   = outer.weigh(loss(z, t), batch)               per-sample losses, weighted
    L        = losses.mean() + outer.penalty(params)        whatever is added
    F        = outer loss + outer.prior()                   the outer loss sees the network's own output

``project(values)`` maps the values back into their set after an outer step. A module of one's own needs none of this:
any ``nn.Module`` may be φ when the inner loss is written as a function of it (:class:`calibrant.bilevel.Bilevel`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.data.batch import Batch, Tensors
from calibrant.models.functional import FunctionalModule


class OuterVariable(nn.Module):
    """The interface, and the variable that does nothing (plain training)."""

    needs_index = False
    """Whether it belongs to single samples, so that batches must say which samples they hold."""
    moves_start = False
    """Whether ``initial`` depends on φ."""

    def initial(self, params: Tensor) -> Tensor:
        """The starting point θ_0 from the module's own parameters (a flat vector)."""
        return params

    def targets(self, labels: Tensor, batch: Batch, classes: int) -> Tensor:
        """Soft targets from labels, or the labels as they are."""
        return labels

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        """Per-sample losses as they enter the mean."""
        return losses

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        """What the training loss sees of the network's output; the outer loss sees the output itself."""
        return logits

    def penalty(self, params: Tensors) -> Tensor | float:
        """What is added to the mean loss."""
        return 0.0

    def prior(self) -> Tensor | float:
        """A penalty on φ itself, added to the outer loss."""
        return 0.0

    def project(self, values: Tensors) -> Tensors:
        """The nearest allowed values; a pure function, called after each outer step."""
        return values


class OuterVariables(OuterVariable):
    """Several outer variables at once, applied in the order given."""

    def __init__(self, *parts: OuterVariable) -> None:
        super().__init__()
        for part in parts:
            if not isinstance(part, OuterVariable):
                raise TypeError(f"OuterVariables chains OuterVariable modules; got a {type(part).__name__}.")
        self.parts = nn.ModuleList(parts)
        self.needs_index = any(p.needs_index for p in parts)
        self.moves_start = any(p.moves_start for p in parts)

    def initial(self, params: Tensor) -> Tensor:
        for part in self._each():
            params = part.initial(params)
        return params

    def targets(self, labels: Tensor, batch: Batch, classes: int) -> Tensor:
        for part in self._each():
            labels = part.targets(labels, batch, classes)
        return labels

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        for part in self._each():
            losses = part.weigh(losses, batch)
        return losses

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        for part in self._each():
            logits = part.outputs(logits, batch)
        return logits

    def penalty(self, params: Tensors) -> Tensor | float:
        return sum((part.penalty(params) for part in self._each()), 0.0)

    def prior(self) -> Tensor | float:
        return sum((part.prior() for part in self._each()), 0.0)

    def project(self, values: Tensors) -> Tensors:
        for position, part in enumerate(self._each()):
            prefix = f"parts.{position}."
            own = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
            values = values | {prefix + k: v for k, v in part.project(own).items()}
        return values

    def _each(self) -> Iterable[OuterVariable]:
        return self.parts  # type: ignore[return-value]


def add_prior(loss: Tensor, variables: object) -> Tensor:
    """``loss + variables.prior()``; modules that are no :class:`OuterVariable` have no prior."""
    prior = variables.prior() if isinstance(variables, OuterVariable) else 0.0
    return loss + prior if isinstance(prior, Tensor) else loss


class SampleWeights(OuterVariable):
    """One weight per training sample: ``mean_i w_i·l_i`` (Eq. 10, Sanguin et al. 2024).

    Parameters
    ----------
    samples : int
        How many training samples there are.
    form : {"clip", "sigmoid"}
        ``"clip"``: the weights themselves, put back into [0, 1] after each outer step (what Fig. 3 of the paper shows);
        ``"sigmoid"``: ``w = σ(φ)``, smooth, never exactly 0 or 1.
    initial_weight : float
        In [0, 1] for ``"clip"``, strictly inside for ``"sigmoid"``. The paper does not state its w⁰.
    """

    needs_index = True

    def __init__(
        self, samples: int, *, form: Literal["clip", "sigmoid"] = "clip", initial_weight: float | None = None
    ) -> None:
        super().__init__()
        if form not in ("clip", "sigmoid"):
            raise ValueError(f"form must be 'clip' or 'sigmoid'; got {form!r}.")
        weight = (1.0 if form == "clip" else 0.9) if initial_weight is None else initial_weight
        inside = 0 <= weight <= 1 if form == "clip" else 0 < weight < 1
        if not inside:
            raise ValueError(f"initial_weight={weight} is outside the range of form={form!r}.")
        self.form = form
        self.raw = nn.Parameter(torch.full((samples,), weight if form == "clip" else math.log(weight / (1 - weight))))

    def weights(self) -> Tensor:
        """All weights, in the order of the samples."""
        return self.raw if self.form == "clip" else torch.sigmoid(self.raw)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        size = len(losses) if losses.dim() else None
        return losses * _of_batch(self.weights(), batch, size, "SampleWeights")

    def project(self, values: Tensors) -> Tensors:
        return {k: v.clamp(0.0, 1.0) for k, v in values.items()} if self.form == "clip" else values


class L2(OuterVariable):
    """L2 penalties ``½ Σ_k exp(φ_k)·‖W_k‖²``, one coefficient per layer, per unit, or one for all.

    Weight matrices and kernels are penalised, biases and normalisation scales are not. ``"unit"`` gives each output
    unit (row) its own, as unit-wise meta-calibration (Bohdal et al. 2021) does.
    """

    def __init__(
        self, model: nn.Module, *, per: Literal["layer", "unit", "model"] = "layer", initial: float = 1e-4
    ) -> None:
        super().__init__()
        if per not in ("layer", "unit", "model"):
            raise ValueError(f"per must be 'layer', 'unit' or 'model'; got {per!r}.")
        if initial <= 0:
            raise ValueError(f"initial must be positive; got {initial}.")
        self.per = per
        shapes = {k: p.shape for k, p in model.named_parameters() if p.requires_grad and p.dim() > 1}
        self.names = list(shapes)
        sizes = {"layer": [1] * len(shapes), "unit": [s[0] for s in shapes.values()], "model": [1]}[per]
        self.sizes = sizes
        self.log = nn.Parameter(torch.full((sum(sizes),), math.log(initial)))

    def coefficients(self) -> Tensor:
        """The penalties' strengths, in the order of the layers."""
        return self.log.exp()

    def penalty(self, params: Tensors) -> Tensor | float:
        strengths = self.coefficients()
        if self.per == "model":
            return 0.5 * strengths.sum() * sum(params[k].square().sum() for k in self.names)
        total: Tensor | float = 0.0
        for name, strength in zip(self.names, strengths.split(self.sizes), strict=True):
            rows = params[name].square().flatten(1).sum(1)
            total = total + 0.5 * (strength * rows).sum()
        return total


class LabelSmoothing(OuterVariable):
    """Smoothed targets ``(1 − ε)·onehot + ε/C``, with ε per sample or per class; ``ε = largest·σ(φ)``."""

    def __init__(
        self,
        count: int,
        *,
        per: Literal["sample", "class"] = "sample",
        initial: float = 0.01,
        largest: float = 1.0,
    ) -> None:
        super().__init__()
        if per not in ("sample", "class"):
            raise ValueError(f"per must be 'sample' or 'class'; got {per!r}.")
        if not 0 < initial < largest <= 1:
            raise ValueError(f"0 < initial < largest <= 1 must hold; got initial={initial}, largest={largest}.")
        self.per, self.largest = per, largest
        self.needs_index = per == "sample"
        self.raw = nn.Parameter(torch.full((count,), math.log(initial / (largest - initial))))

    def smoothing(self) -> Tensor:
        """All ε, in the order of the samples or classes."""
        return self.largest * torch.sigmoid(self.raw)

    def targets(self, labels: Tensor, batch: Batch, classes: int) -> Tensor:
        hard = F.one_hot(labels, classes).to(self.raw.dtype) if labels.dim() == 1 else labels
        if self.per == "sample":
            epsilon = _of_batch(self.smoothing(), batch, len(labels), "LabelSmoothing(per='sample')").unsqueeze(-1)
        elif batch.targets.dim() == 1:
            epsilon = self.smoothing()[batch.targets].unsqueeze(-1)
        else:
            raise ValueError(
                "LabelSmoothing(per='class') follows the label, so targets must be class indices; "
                f"got shape {tuple(batch.targets.shape)}. Use per='sample' with soft targets."
            )
        return (1 - epsilon) * hard + epsilon / classes


class InitialPoint(OuterVariable):
    """The starting point itself is learned: ``θ_0 = φ`` (Φ_0 of Eq. 6). Use it with ``restart=True``."""

    moves_start = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.point = nn.Parameter(FunctionalModule(model).initial())

    def initial(self, params: Tensor) -> Tensor:
        return self.point


def _of_batch(values: Tensor, batch: Batch, size: int | None, who: str) -> Tensor:
    """Those of the per-sample ``values`` that belong to the ``size`` samples of the batch."""
    index = batch.require_index(who)
    if size is None:
        raise ValueError(f"{who} needs one loss a sample, and the loss gave one value; do not reduce it.")
    if isinstance(index, slice) and len(values[index]) != size:
        raise ValueError(f"{who} was made for {len(values)} samples, and the training set has {size}; they must agree.")
    return values[index]
