"""A learned focal γ, and the training loss of the second paper that uses it.

A learned focal γ, per sample (γ-Net) or one for all samples. Equations are those of "Towards Unbiased Calibration using
Meta-Regularization". These networks are used during training only; the trained classifier does not need them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.base.classes import log_of_others, one_hot
from calibrant.base.settings import check_choice
from calibrant.bilevel.gradients.loss_derivatives import constant
from calibrant.bilevel.variables.base import OuterVariable
from calibrant.data.streams.batch import Batch, Tensors
from calibrant.losses.classification import focal, focal_slope

Form = Literal["bounded", "published"]
Positive = Literal["abs", "min-max", "sigmoid", "relu", "softplus"]


def published_gamma(features: Tensor, attention: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """``x̃·W/τ``, one value for each row of `features`: Eq. (3) and Eq. (4) of the second paper, without | |.

    `attention` is A of shape (d, k) and `weight` is W of shape (d,). The same A is used twice; there are no separate
    queries, keys and values.
    """
    p = torch.softmax(features @ attention, dim=-1)  # Eq. (3)
    return (p @ attention.T) @ weight / temperature  # Eq. (4)


def bounded_gamma(features: Tensor, centre: Tensor, weight: Tensor, *, spread: float, largest: float) -> Tensor:
    """``γ = c + spread·c·(1 − c/L)·tanh(u)``, which is in [0, L] for every centre c in [0, L], without clipping.

    u comes from a linear map v of the features, which are first standardised for each sample. For every map,
    ``u = (v − mean v)/√(1 + var v)`` has mean 0 and a variance below 1 over the batch. So tanh does not saturate, and
    the level of γ depends on c alone.
    """
    x = F.layer_norm(features, features.shape[-1:]) / math.sqrt(features.shape[-1])
    v = x @ weight
    v = v - v.mean()
    u = v / torch.sqrt(1 + v.square().mean())
    return centre + spread * centre * (1 - centre / largest) * torch.tanh(u)


class GammaNet(OuterVariable):
    """γ-Net: ``net(features)`` gives one γ ≥ 0 for each row of the features before the last layer.

    ``form="bounded"`` (the default) is :func:`bounded_gamma`: a learned centre, projected onto [0, `largest`] after
    each outer step, plus a deviation by a learned linear map of the features. At the start all γ equal the centre. γ
    depends on the batch only through its mean and variance, and a batch of one sample gets the centre.

    ``form="published"`` is Eq. (3) and Eq. (4) of the second paper, ``γ = |x̃·W|/τ`` with k = number of classes. It has
    no upper bound. With SECE alone as outer loss, γ can grow until the network stops learning. The paper starts at
    γ = 1 without saying how. Here W is scaled so that γ = 1 for features of 0, and :meth:`rescale` makes the mean 1 for
    given features.

    Parameters
    ----------
    features, n_classes : int
        d and k.
    form : {"bounded", "published"}
        The form of γ, see above.
    positive : {"abs", "min-max", "sigmoid", "relu", "softplus"}
        How the published form makes x̃·W/τ positive. "abs" is the paper's choice; the paper names the others without
        formulas. "min-max" scales over the batch. After :meth:`rescale` all of them have a mean of 1 ("min-max",
        "sigmoid" and "softplus" by a constant factor).
    temperature : float
        τ of the published form.
    initial, largest : float
        The first centre and the upper bound of the bounded form.
    spread : float
        How far γ may be from the centre in the bounded form, from 0 (it equals the centre) to 1.
    prior_strength : float
        λ of ``λ/2·‖w‖²``, which is added to the outer loss. It pulls the bounded form towards one γ for all samples.
    seed : int
        The seed of the initial A and W.
    """

    scale: Tensor

    def __init__(
        self,
        features: int,
        n_classes: int,
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
        check_choice("form", form, ("bounded", "published"))
        check_choice("positive", positive, _POSITIVE)
        if features < 1 or n_classes < 1 or not temperature > 0:
            raise ValueError(
                "features and n_classes must be at least 1 and temperature positive; "
                f"got {features=}, {n_classes=} and {temperature=}."
            )
        _check_interval(initial, largest)
        if not 0 <= spread <= 1:
            raise ValueError(f"spread must be between 0 and 1; got {spread}.")
        if not 0 <= prior_strength < math.inf:
            raise ValueError(f"prior_strength must be at least 0 and finite; got {prior_strength}.")
        self.features, self.form, self.positive, self.temperature = features, form, positive, temperature
        self.largest, self.spread, self.prior_strength = largest, spread, prior_strength
        if form == "bounded":
            self.centre = nn.Parameter(torch.tensor(float(initial), device="cpu"))
            self.weight = nn.Parameter(torch.zeros(features, device="cpu"))
            return
        bound, generator = 1 / math.sqrt(features), torch.Generator().manual_seed(seed)
        attention, weight = torch.empty(features, n_classes, device="cpu"), torch.empty(features, device="cpu")
        self.attention = nn.Parameter(attention.uniform_(-bound, bound, generator=generator))
        self.weight = nn.Parameter(weight.uniform_(-bound, bound, generator=generator))
        self.register_buffer("scale", torch.ones((), device="cpu"))
        with torch.no_grad():  # γ = 1 for features of 0
            middle = published_gamma(torch.zeros(1, features, device="cpu"), self.attention, self.weight, temperature)
            self.weight.div_(middle.squeeze())

    def forward(self, features: Tensor) -> Tensor:
        """One γ for each row of `features`, which should be detached from the classifier."""
        if features.dim() != 2 or features.shape[1] != self.features:
            raise ValueError(
                f"features must have shape (samples, {self.features}), one row for each sample; got "
                f"{tuple(features.shape)}. For feature maps, name a head that follows the pooling: head='…'."
            )
        if self.form == "bounded":
            return bounded_gamma(features, self.centre, self.weight, spread=self.spread, largest=self.largest)
        raw = published_gamma(features, self.attention, self.weight, self.temperature)
        return self.scale * _POSITIVE[self.positive](raw)

    @torch.no_grad()
    def rescale(self, features: Tensor) -> None:
        """Make the mean of γ over `features` equal to 1, in place. Call it once, before training.

        It scales W of the published form. For "min-max", "sigmoid" and "softplus", where scaling W is not enough, it
        scales x̃·W/τ to a root mean square of 1 and multiplies γ by a constant. The bounded form does not change,
        because it starts at its centre.
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
        self.gamma = nn.Parameter(torch.tensor(float(initial), device="cpu"))

    def forward(self, features: Tensor) -> Tensor:
        """The same γ for each row of `features`."""
        return self.gamma.expand(features.shape[0])

    def project(self, values: Tensors) -> Tensors:
        return _project(values, "gamma", self.largest)


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
            f"largest must be positive and finite, and initial between 0 and largest; got {initial=} and {largest=}."
        )


def _nonzero(mean: Tensor) -> Tensor:
    if not bool(mean > 0):
        raise ValueError(
            "All γ are 0 for the given features, so no scale makes their mean 1. Use other features or a seed."
        )
    return mean


class HeadedNetwork(Protocol):
    """A network that consists of a body and a head."""

    def features(self, inputs: Any) -> Tensor: ...

    def head(self, features: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class FocalWithGamma:
    """The inner loss of the second paper: the mean focal loss with γ from the outer module (Eq. (2)).

    ``outer`` is a :class:`GammaNet`, a :class:`ConstantGamma`, or any module that maps features to one γ per sample.
    Its features are detached, so the classifier is not trained to change γ. Hypergradients over several steps still
    differentiate γ with respect to the features (:mod:`calibrant.bilevel.gradients.loss_derivatives`). An
    :class:`OuterVariable` can also change the logits that the loss sees (``outputs``).

    Parameters
    ----------
    rescaled : bool
        Multiply the loss of a batch by a factor, so that its gradient in the logits has the mean size of
        cross-entropy's. Otherwise a larger γ also shortens every training step. The factor is a constant for gradients
        and for hypergradients, so a hypergradient does not see that γ changes it.
    body_share : float
        The share of the focal loss in the loss that trains the body, between 0 and 1. The rest is cross-entropy. With
        0, γ acts on the head only: the focal loss trains the head, and cross-entropy the features.
    """

    rescaled: bool = False
    body_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.body_share <= 1:
            raise ValueError(f"body_share must be between 0 and 1; got {self.body_share}.")

    def __call__(self, net: HeadedNetwork, outer: Any, batch: Batch) -> Tensor:
        def logits_of(features: Tensor) -> Tensor:
            head_logits = net.head(features)
            return outer.outputs(head_logits, batch) if isinstance(outer, OuterVariable) else head_logits

        features = net.features(batch.inputs)
        gamma, logits = outer(features.detach()), logits_of(features)
        if self.body_share == 1:
            losses = focal(logits, batch.targets, gamma)
        else:
            losses = _apart(logits, logits_of(features.detach()), batch.targets, gamma, self.body_share)
        loss = batch.weighted(losses).mean()
        return loss / mean_slope(logits, batch.targets, gamma) if self.rescaled else loss


def _apart(logits: Tensor, of_head: Tensor, labels: Tensor, gamma: Tensor, share: float) -> Tensor:
    """Focal losses whose gradient in the body is `share` times their own plus the rest of cross-entropy's.

    `of_head` are the logits of detached features. They add to the gradient of the head only. All factors are detached,
    so hypergradients differentiate through them (:mod:`calibrant.bilevel.gradients.loss_derivatives`).
    """
    of_cross_entropy = torch.softmax(logits, -1) - one_hot(labels, logits.shape[-1], logits.dtype)
    slope = focal_slope(logits, labels, gamma)
    mixed = share * slope + (1 - share)
    of_body = (mixed.unsqueeze(-1) * of_cross_entropy).detach()
    rest = ((slope - mixed).unsqueeze(-1) * of_cross_entropy).detach()
    surrogate = (of_body * logits + rest * of_head).sum(-1)
    return surrogate - surrogate.detach() + focal(logits.detach(), labels, gamma)


def mean_slope(logits: Tensor, labels: Tensor, gamma: Tensor) -> Tensor:
    """:func:`focal_slope` averaged over a batch with the weights 1 − p_y, the sizes of cross-entropy's gradients."""
    logits, gamma = constant(logits), constant(gamma)
    size = torch.exp(log_of_others(logits, labels))
    smallest = torch.finfo(size.dtype).tiny
    return ((focal_slope(logits, labels, gamma) * size).mean() / size.mean().clamp_min(smallest)).clamp_min(1e-3)
