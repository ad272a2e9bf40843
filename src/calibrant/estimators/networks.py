"""Trained networks as plain modules, and their conversion to arrays, numbers and text for files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.bilevel import Solution
from calibrant.methods import Fitted, Mixture
from calibrant.methods.blend import Blend
from calibrant.methods.core.results import network_module
from calibrant.methods.tabular import Rotated
from calibrant.models.architectures.mlp import EmbeddingLayer, FromZero, PiecewiseLinear

_ROWS = 2048
"""Rows per forward pass; few enough that the values between layers stay in the cache."""
_KNOWN = (nn.Sequential, nn.Linear, nn.ReLU, nn.SiLU, nn.Tanh, EmbeddingLayer, FromZero, PiecewiseLinear)
LAYERS: dict[str, type[nn.Module]] = {layer.__name__: layer for layer in _KNOWN}
"""The layers that a classifier's file may hold."""


@dataclass(frozen=True)
class Frozen:
    """A trained network on the CPU.

    It predicts in float64, so that a row's logits do not depend on the other rows of the batch, except for rounding.
    """

    module: nn.Module

    @property
    def params(self) -> Tensor:
        """A tensor on the network's device."""
        return next(self.module.parameters())

    @property
    def frozen(self) -> nn.Module:
        """The module."""
        return self.module

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits, (n, C)."""
        with torch.no_grad():
            return torch.cat([self.module(piece) for piece in inputs.double().split(_ROWS)])


def freeze(fitted: Fitted) -> Mixture | Blend:
    """Return the same classifier on the CPU, without the state of its training."""
    if isinstance(fitted, Blend):
        return replace(fitted, mixture=fitted.mixture and _frozen(fitted.mixture), extras={})
    assert isinstance(fitted, Mixture)
    return _frozen(fitted)


def _frozen(mixture: Mixture) -> Mixture:
    return replace(mixture, networks=tuple(_network(s) for s in mixture.networks), extras={})


def _network(solution: Solution | Rotated) -> Frozen:
    module = network_module(solution)
    assert module is not None
    return Frozen(module.cpu().double().eval().requires_grad_(False))


def to_tree(module: nn.Module) -> dict[str, Any]:
    """Convert a module to its layer's name, settings, arrays and inner layers."""
    settings = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"}
    tensors: Iterable[tuple[str, Tensor]] = (
        *module.named_parameters(recurse=False),
        *module.named_buffers(recurse=False),
    )
    return {
        "layer": type(module).__name__,
        "settings": settings,
        "arrays": {name: value.detach().numpy() for name, value in tensors},
        "absent": tuple(name for name, value in module._parameters.items() if value is None),
        "inner": {name: to_tree(inner) for name, inner in module.named_children()},
    }


def from_tree(tree: dict[str, Any]) -> nn.Module:
    """Build a module from the output of :func:`to_tree`, without calling a constructor."""
    if (kind := LAYERS.get(tree["layer"])) is None:
        raise ValueError(f"unknown layer {tree['layer']!r}; known are {', '.join(LAYERS)}")
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in tree["settings"].items():
        if hasattr(kind, name) or name.startswith("_") or not _plain(value):
            raise ValueError(f"{name!r} is not a setting of a layer")
        setattr(module, name, value)
    for name, value in tree["arrays"].items():
        module.register_parameter(name, nn.Parameter(torch.from_numpy(value), requires_grad=False))
    for name in tree["absent"]:  # a layer without a bias
        module.register_parameter(name, None)
    for name, inner in tree["inner"].items():
        module.add_module(name, from_tree(inner))
    return module.eval()


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
