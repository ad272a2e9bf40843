"""A learned map of the logits, which depends on the network's output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel.variables.base import OuterVariable, add_prior
from calibrant.data.streams.batch import Batch, Tensors
from calibrant.losses.classification import cross_entropy
from calibrant.models.functional.network import Network

DESCRIPTION = 5
"""The number of values that describe a vector of logits."""


class LogitMap(OuterVariable):
    """``logits · exp(s(logits))`` with a small network s: a temperature that depends on the output.

    s is a perceptron with one hidden layer on five values that describe the logits (:func:`describe`), plus a constant.
    The factor is positive, so it does not change the order of the classes or the error. At the start it is 1.

    The map does not affect training: the inner loss uses the logits. The outer loss uses the mapped logits
    (:class:`BehindMap`), and so do predictions.

    Parameters
    ----------
    hidden : int
        The width of the hidden layer. 0 leaves only the constant, which is one temperature for all inputs.
    samples : int, optional
        The number of held-out samples. It sets the strength of a standard normal prior on the weights, relative to the
        mean loss on that many samples. None means no prior.
    largest : float
        The factor stays between ``1/largest`` and ``largest``.
    seed : int
        The seed of the hidden layer's initial weights.
    """

    def __init__(self, hidden: int = 16, *, samples: int | None = None, largest: float = 20.0, seed: int = 0) -> None:
        super().__init__()
        if hidden < 0 or not largest > 1 or (samples is not None and samples < 1):
            raise ValueError(
                "hidden must be at least 0, largest above 1 and samples at least 1 or None; "
                f"got {hidden=}, {largest=} and {samples=}."
            )
        self.held_out_samples, self.largest = samples, largest
        generator = torch.Generator().manual_seed(seed)
        first = torch.randn(hidden, DESCRIPTION, generator=generator, device="cpu") / DESCRIPTION**0.5
        self.first, self.first_bias = nn.Parameter(first), nn.Parameter(torch.zeros(hidden, device="cpu"))
        self.second = nn.Parameter(torch.zeros(hidden, device="cpu"))
        self.constant = nn.Parameter(torch.zeros(1, device="cpu"))

    def forward(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return wide * torch.exp(self.log_factor(describe(wide).to(self.first.dtype))).unsqueeze(-1)

    def log_factor(self, described: Tensor) -> Tensor:
        """s, the logarithm of the factor, for descriptions (…, 5) of vectors of logits."""
        hidden = torch.tanh(F.linear(described, self.first, self.first_bias))
        bound = math.log(self.largest)
        return (hidden @ self.second + self.constant).clamp(-bound, bound)

    @property
    def hidden(self) -> int:
        """The width of the hidden layer; 0 for a temperature."""
        return len(self.second)

    @property
    def factor(self) -> float:
        """The factor at ``s = constant``: for a width of 0, the inverse of the temperature."""
        return float(self.constant.detach().double().exp().clamp(1 / self.largest, self.largest))

    def prior(self) -> Tensor | float:
        if self.held_out_samples is None:
            return 0.0
        square = self.first.square().sum() + self.first_bias.square().sum() + self.second.square().sum()
        return square / (2 * self.held_out_samples)

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"scale": self.constant.exp()}


def describe(logits: Tensor, n_classes: int | None = None) -> Tensor:
    """Five values of order one for each vector of logits, from shape (…, C) to (…, 5).

    ``n_classes`` is C. It is needed only if ``logits`` is a symbol without a shape, while torch traces a module.

    The mean of the logits is subtracted first. The values are the largest logit, its lead over the second, the second's
    lead over the third (0 for two classes), log Σ exp, and the root mean square, each as ``log(1 + x) − 1``.
    """
    count = min(3, logits.shape[-1] if n_classes is None else n_classes)
    centred = logits - logits.mean(-1, keepdim=True)
    top = centred.topk(count, dim=-1).values
    leads = F.pad(top[..., :-1] - top[..., 1:], (0, 3 - count))
    spread = centred.square().mean(-1, keepdim=True).sqrt()
    features = torch.cat([top[..., :1], leads, centred.logsumexp(-1, keepdim=True), spread], -1)
    return features.log1p() - 1


@dataclass(frozen=True)
class BehindMap:
    """An outer objective: a per-sample loss of the mapped logits, averaged, plus the map's prior."""

    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def __call__(self, net: Network, outer: LogitMap, batch: Batch) -> Tensor:
        losses = self.loss(outer(net.logits(batch.inputs)), batch.targets)
        return add_prior(batch.weighted(losses).mean(), outer)
