"""A learned focal γ, per sample (γ-Net) or one for all samples.

Equations are those of "Towards Unbiased Calibration using Meta-Regularization". These networks are used during training
only; the trained classifier does not need them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant._settings import check_choice
from calibrant.bilevel.outer_variables.base import OuterVariable
from calibrant.data.batch import Tensors

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
