"""A focal γ for each sample from the network's features (γ-Net), or one γ for all, and the training loss that uses it.

Equations are those of "Towards Unbiased Calibration using Meta-Regularization". The networks here exist during training
only: the classifier that they help to train is used without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel.outer_variables.base import OuterVariable
from calibrant.data.batch import Batch, Tensors
from calibrant.losses.classification import focal

Form = Literal["bounded", "published"]
Positive = Literal["abs", "min-max", "sigmoid", "relu", "softplus"]


def published_gamma(features: Tensor, attention: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """``x̃·W/τ``, one value for each row of `features`: Eq. (3) and Eq. (4) before the absolute value.

    `attention` is A of shape (d, k) and `weight` is W of shape (d,). The same A serves twice; there are no separate
    queries, keys and values.
    """
    p = torch.softmax(features @ attention, dim=-1)  # Eq. (3)
    return (p @ attention.T) @ weight / temperature  # Eq. (4)


def bounded_gamma(features: Tensor, centre: Tensor, weight: Tensor, *, spread: float, largest: float) -> Tensor:
    """``γ = c + spread·c·(1 − c/L)·tanh(u)``, between 0 and L for every centre c in [0, L] without any clipping.

    u is a linear map of the features, each sample's features standardised first. Over the batch u has mean 0 and a
    variance below 1, whatever the map: ``u = (v − mean v)/√(1 + var v)``. So tanh cannot saturate, and the level of γ
    belongs to c alone.
    """
    x = F.layer_norm(features, features.shape[-1:]) / math.sqrt(features.shape[-1])
    v = x @ weight
    v = v - v.mean()
    u = v / torch.sqrt(1 + v.square().mean())
    return centre + spread * centre * (1 - centre / largest) * torch.tanh(u)


class GammaNet(OuterVariable):
    """γ-Net: ``net(features)`` gives one γ ≥ 0 for each row of the features before the last layer.

    ``form="bounded"`` (the default) is :func:`bounded_gamma`: a learned centre, projected onto [0, `largest`] after
    each outer step, and around it a learned linear map of the features. All γ equal the centre at the start. γ depends
    on the batch through its mean and variance only; a batch of one sample gets the centre.

    ``form="published"`` is Eq. (3)–(4) of the paper, ``γ = |x̃·W|/τ`` with k = number of classes. It has no upper bound,
    and with SECE alone as outer loss γ can grow until the network stops learning. The paper starts at γ = 1 and does
    not say how: here W is scaled so that γ = 1 for features of 0, and :meth:`rescale` makes the mean 1 for given ones.

    Parameters
    ----------
    features, classes : int
        d, the number of features, and k.
    positive : {"abs", "min-max", "sigmoid", "relu", "softplus"}
        How the published form keeps γ positive: the paper's choice, and the alternatives that it names without
        formulas. They are applied to x̃·W/τ; min-max scales over the batch. After :meth:`rescale` they too have a
        mean of 1 (by a constant factor for "min-max", "sigmoid" and "softplus").
    temperature : float
        τ of the published form.
    initial, largest : float
        The first centre and the upper bound of the bounded form.
    spread : float
        How far the bounded form may leave its centre, 0 (not at all) to 1.
    prior_strength : float
        λ of ``λ/2·‖w‖²``, added to the outer loss: the bounded form's pull towards one γ for all.
    seed : int
        The start of A and W.
    """

    scale: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        form: Form = "bounded",
        positive: Positive = "abs",
        temperature: float = 0.01,
        initial: float = 1.0,
        largest: float = 5.0,
        spread: float = 1.0,
        prior_strength: float = 1e-4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if form not in ("bounded", "published"):
            raise ValueError(f"form must be 'bounded' or 'published'; got {form!r}.")
        if positive not in _POSITIVE:
            raise ValueError(f"positive must be one of {', '.join(map(repr, _POSITIVE))}; got {positive!r}.")
        if features < 1 or classes < 1 or not temperature > 0:
            raise ValueError(
                "features and classes must be at least 1 and temperature positive; "
                f"got {features}, {classes} and {temperature}."
            )
        _check_interval(initial, largest)
        if not 0 <= spread <= 1:
            raise ValueError(f"spread must be between 0 and 1; got {spread}.")
        if not 0 <= prior_strength < math.inf:
            raise ValueError(f"prior_strength must be at least 0 and finite; got {prior_strength}.")
        self.features, self.form, self.positive, self.temperature = features, form, positive, temperature
        self.largest, self.spread, self.prior_strength = largest, spread, prior_strength
        if form == "bounded":
            self.centre = nn.Parameter(torch.tensor(float(initial)))
            self.weight = nn.Parameter(torch.zeros(features))
            return
        bound, generator = 1 / math.sqrt(features), torch.Generator().manual_seed(seed)
        self.attention = nn.Parameter(torch.empty(features, classes).uniform_(-bound, bound, generator=generator))
        self.weight = nn.Parameter(torch.empty(features).uniform_(-bound, bound, generator=generator))
        self.register_buffer("scale", torch.ones(()))
        with torch.no_grad():  # γ = 1 where the features are 0
            middle = published_gamma(torch.zeros(1, features), self.attention, self.weight, temperature)
            self.weight.div_(middle.squeeze())

    def forward(self, features: Tensor) -> Tensor:
        """One γ for each row of `features`, which should be detached from the classifier."""
        if features.shape[-1] != self.features:
            raise ValueError(f"features must have {self.features} columns; got shape {tuple(features.shape)}.")
        if self.form == "bounded":
            return bounded_gamma(features, self.centre, self.weight, spread=self.spread, largest=self.largest)
        raw = published_gamma(features, self.attention, self.weight, self.temperature)
        return self.scale * _POSITIVE[self.positive](raw)

    @torch.no_grad()
    def rescale(self, features: Tensor) -> None:
        """Make the mean of γ over `features` 1, in place: call it once, before training.

        The published form's W is scaled. Where that cannot do it ("min-max", "sigmoid", "softplus") x̃·W/τ is brought to
        a root mean square of 1 and γ is multiplied by a constant. The bounded form starts at its centre already.
        """
        if self.form == "bounded":
            return
        if self.positive in ("abs", "relu"):
            self.weight.div_(_nonzero(self(features).mean()))
            return
        raw = published_gamma(features, self.attention, self.weight, self.temperature)
        self.weight.div_(_nonzero(raw.square().mean().sqrt()))
        self.scale.div_(_nonzero(self(features).mean()))

    def prior(self) -> Tensor | float:
        if self.form == "published" or not self.prior_strength:
            return 0.0
        return 0.5 * self.prior_strength * self.weight.square().sum()

    def project(self, values: Tensors) -> Tensors:
        return _project(values, "centre", self.largest) if self.form == "bounded" else values


class ConstantGamma(OuterVariable):
    """One learned γ for all samples, projected onto [0, `largest`] after each outer step."""

    def __init__(self, initial: float = 1.0, *, largest: float = 5.0) -> None:
        super().__init__()
        _check_interval(initial, largest)
        self.largest = largest
        self.gamma = nn.Parameter(torch.tensor(float(initial)))

    def forward(self, features: Tensor) -> Tensor:
        """The same γ for each row of `features`."""
        return self.gamma.expand(features.shape[0])

    def project(self, values: Tensors) -> Tensors:
        return _project(values, "gamma", self.largest)


class HeadedNetwork(Protocol):
    """A network that can be taken apart before its last layer."""

    def features(self, inputs: Any) -> Tensor: ...

    def head(self, features: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class FocalWithGamma:
    """The inner loss of the second paper: focal loss, averaged, with γ from the outer module (Eq. 2).

    ``outer`` is a :class:`GammaNet`, a :class:`ConstantGamma`, or any module from features to one γ for each sample. It
    sees detached features, so that the classifier is not trained to please it. Hypergradients over several steps still
    follow how γ moves with the features (:mod:`calibrant.bilevel.detached`). An :class:`OuterVariable` may also change
    the logits that the loss sees (``outputs``).
    """

    def __call__(self, net: HeadedNetwork, outer: Any, batch: Batch) -> Tensor:
        features = net.features(batch.inputs)
        gamma, logits = outer(features.detach()), net.head(features)
        if isinstance(outer, OuterVariable):
            logits = outer.outputs(logits, batch)
        return batch.weighted(focal(logits, batch.targets, gamma)).mean()


def _min_max(raw: Tensor) -> Tensor:
    low, high = raw.amin(), raw.amax()
    return (raw - low) / (high - low).clamp_min(torch.finfo(raw.dtype).eps)


_POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "min-max": _min_max,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "softplus": F.softplus,
}


def _project(values: Tensors, name: str, largest: float) -> Tensors:
    return values | {name: values[name].clamp(0, largest)}


def _check_interval(initial: float, largest: float) -> None:
    if not 0 < largest < math.inf or not 0 <= initial <= largest:
        raise ValueError(
            f"largest must be positive and finite and initial between 0 and largest; got initial={initial} and "
            f"largest={largest}."
        )


def _nonzero(mean: Tensor) -> Tensor:
    if not bool(mean > 0):
        raise ValueError("γ is 0 for all these features, so no scale makes its mean 1. Use other features or a seed.")
    return mean
