"""Sample weights from a small network, whose number of parameters does not depend on the number of samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from calibrant._classes import one_hot
from calibrant.bilevel.outer_variables.base import ONE_LOSS_PER_SAMPLE, OuterVariable
from calibrant.data.batch import Batch, Tensors


class WeightNetwork(OuterVariable):
    """``w = σ(MLP(x, onehot(y)))``: weights as a smooth function of the input and the observed label.

    It is similar to Meta-Weight-Net (Shu et al. 2019), which reads the loss of a sample instead. When a classifier has
    memorised its labels, losses no longer distinguish samples.

    At the start all weights are equal, because the last layer's matrix is 0. It needs no sample index and can weigh
    unseen samples. Inputs are flattened. They should be standardised, or ``batch.hyper["input_mean"]`` and
    ``["input_scale"]`` standardise them (:func:`standardisation`).

    Parameters
    ----------
    features, n_classes : int
        The number of entries of an input, and of classes.
    labels : bool
        Whether the network sees the label. False gives weights by the input alone, ``w = σ(MLP(x))``.
    hidden : int
        The width of the hidden layer.
    initial_weight : float
        In (0, 1).
    prior_strength : float
        λ of ``λ/2·‖A‖²``, which is added to the outer loss, where A is the last layer's matrix. At A = 0 all weights
        are equal.
    seed : int
        The seed of the hidden layer's initial weights.
    """

    def __init__(
        self,
        features: int,
        n_classes: int,
        *,
        labels: bool = True,
        hidden: int = 16,
        initial_weight: float = 0.95,
        prior_strength: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < initial_weight < 1:
            raise ValueError(f"initial_weight must be in (0, 1); got {initial_weight}.")
        if not 0 <= prior_strength < math.inf:
            raise ValueError(f"prior_strength must be at least 0 and finite; got {prior_strength}.")
        self.features, self.n_classes, self.labels, self.prior_strength = features, n_classes, labels, prior_strength
        entries = features + (n_classes if labels else 0)
        self.first, self.last = nn.Linear(entries, hidden, device="cpu"), nn.Linear(hidden, 1, device="cpu")
        bound = 1 / math.sqrt(entries)  # PyTorch's default, with a separate generator
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.first.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
            self.last.weight.zero_()
            self.last.bias.fill_(math.log(initial_weight / (1 - initial_weight)))

    def weights(self, inputs: Tensor, labels: Tensor, hyper: Tensors | None = None) -> Tensor:
        """The weights of any samples, in (0, 1). ``labels`` are class indices or soft targets."""
        hyper, dtype = hyper or {}, self.first.weight.dtype
        x = inputs.flatten(1)
        if x.shape[1] != self.features:
            raise ValueError(f"Inputs must have {self.features} features for this WeightNetwork; got {x.shape[1]}.")
        if "input_mean" in hyper:
            x = (x - hyper["input_mean"]) / hyper["input_scale"]
        seen = x.to(dtype)
        if self.labels:
            y = one_hot(labels, self.n_classes, dtype) if labels.dim() == 1 else labels
            seen = torch.cat([seen, y.to(dtype)], dim=1)
        hidden = torch.tanh(self.first(seen))
        return torch.sigmoid(self.last(hidden)).squeeze(1)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        if losses.dim() == 0:
            raise ValueError(ONE_LOSS_PER_SAMPLE.format("WeightNetwork"))
        return losses * self.weights(batch.inputs, batch.targets, batch.hyper)

    def prior(self) -> Tensor | float:
        return 0.5 * self.prior_strength * self.last.weight.square().sum() if self.prior_strength else 0.0
