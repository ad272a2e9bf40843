"""Sample weights from a small network: as many outer variables as it has parameters, however many samples there are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.bilevel.outer_variables.base import OuterVariable
from calibrant.data.batch import Batch, Tensors
from calibrant.losses.classification import one_hot


class WeightNetwork(OuterVariable):
    """``w = σ(MLP(x, onehot(y)))``: weights as a smooth function of the input and the observed label.

    In the manner of Meta-Weight-Net (Shu et al. 2019), which reads a sample's loss instead; a network that knows its
    labels by heart has no losses left to tell samples apart.

    It starts with all weights equal (the last layer's matrix is 0), needs no sample index, and weighs samples that it
    never saw. Inputs are flattened and taken as standardised, or else standardised by ``batch.hyper["input_mean"]`` and
    ``["input_scale"]`` (:func:`standardisation`).

    Parameters
    ----------
    features, classes : int
        Entries of an input, and classes.
    labels : bool
        Whether it sees the label; False: weights of the input alone, ``w = σ(MLP(x))``.
    hidden : int
        Units of the one hidden layer.
    initial_weight : float
        Strictly between 0 and 1.
    prior_strength : float
        λ of ``λ/2·‖A‖²`` added to the outer loss, A the last layer's matrix: at A = 0 all weights are equal.
    seed : int
        Of the hidden layer's start.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        labels: bool = True,
        hidden: int = 16,
        initial_weight: float = 0.95,
        prior_strength: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < initial_weight < 1:
            raise ValueError(f"initial_weight must lie strictly between 0 and 1; got {initial_weight}.")
        if not 0 <= prior_strength < math.inf:
            raise ValueError(f"prior_strength must be at least 0 and finite; got {prior_strength}.")
        self.features, self.classes, self.labels, self.prior_strength = features, classes, labels, prior_strength
        entries = features + (classes if labels else 0)
        self.first, self.last = nn.Linear(entries, hidden), nn.Linear(hidden, 1)
        bound = 1 / math.sqrt(entries)  # PyTorch's own start, from a generator of its own
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.first.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
            self.last.weight.zero_()
            self.last.bias.fill_(math.log(initial_weight / (1 - initial_weight)))

    def weights(self, inputs: Tensor, labels: Tensor, hyper: Tensors | None = None) -> Tensor:
        """The weights of any samples, in (0, 1); ``labels`` are class indices or soft targets."""
        hyper, dtype = hyper or {}, self.first.weight.dtype
        x = inputs.flatten(1)
        if x.shape[1] != self.features:
            raise ValueError(f"WeightNetwork was made for {self.features} features, and inputs have {x.shape[1]}.")
        if "input_mean" in hyper:
            x = (x - hyper["input_mean"]) / hyper["input_scale"]
        seen = x.to(dtype)
        if self.labels:
            y = one_hot(labels, self.classes, dtype) if labels.dim() == 1 else labels
            seen = torch.cat([seen, y.to(dtype)], dim=1)
        hidden = torch.tanh(self.first(seen))
        return torch.sigmoid(self.last(hidden)).squeeze(1)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        if losses.dim() == 0:
            raise ValueError("WeightNetwork needs one loss a sample, and the loss gave one value; do not reduce it.")
        return losses * self.weights(batch.inputs, batch.targets, batch.hyper)

    def prior(self) -> Tensor | float:
        return 0.5 * self.prior_strength * self.last.weight.square().sum() if self.prior_strength else 0.0


def standardisation(inputs: Any) -> Tensors:
    """``input_mean`` and ``input_scale`` of each entry over the samples, for ``Bilevel(hyper=…)``; constants get 1."""
    x = torch.as_tensor(inputs).flatten(1)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    scale = x.std(0, unbiased=False)
    return {"input_mean": x.mean(0), "input_scale": torch.where(scale > 0, scale, 1.0)}
