"""The multilayer perceptron, the network of the first paper."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Literal

from torch import nn

from calibrant._settings import check_choice
from calibrant.models.embeddings import EmbeddingLayer, Encoding
from calibrant.models.seeding import seeded_start

Activation = Literal["relu", "silu", "tanh"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


def mlp(
    features: int,
    n_classes: int,
    *,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    dropout: float = 0.0,
    encoding: Encoding | None = None,
    seed: int = 0,
) -> nn.Sequential:
    """A multilayer perceptron with one logit per class. The initial parameters are a pure function of ``seed``.

    The first paper (Sanguin et al. 2024, Section 4) only says "a feed forward neural network". Two hidden layers of 64
    ReLU units reproduce its accuracies.

    Parameters
    ----------
    features, n_classes : int
        Number of inputs and of classes.
    hidden : sequence of int
        Units of each hidden layer.
    activation : {"relu", "silu", "tanh"}
        Activation of the hidden units.
    dropout : float
        Share of hidden units that each training pass leaves out.
    encoding : Encoding, optional
        Makes the first layer a :class:`calibrant.models.embeddings.EmbeddingLayer`.
    seed : int
        Seed of the initial parameters.
    """
    check_choice("activation", activation, ACTIVATIONS)
    if features < 1 or n_classes < 1 or any(width < 1 for width in hidden):
        raise ValueError(
            "features, n_classes and every hidden width must be at least 1; "
            f"got {features=}, {n_classes=} and hidden={tuple(hidden)}."
        )
    with seeded_start(seed):
        layers: list[nn.Module] = []
        for width, following in itertools.pairwise((features, *hidden)):
            layers += [nn.Linear(width, following), ACTIVATIONS[activation]()]
            layers += [nn.Dropout(dropout)] if dropout else []
        layers.append(nn.Linear((features, *hidden)[-1], n_classes))
        if encoding is not None:
            own = copy.deepcopy(encoding)
            layers[0] = EmbeddingLayer(features, (*hidden, n_classes)[0], own)
            own.reset_parameters()
        return nn.Sequential(*layers)
