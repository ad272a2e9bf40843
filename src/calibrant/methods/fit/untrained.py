"""Detection of new networks: whether the parameters look freshly initialised or trained.

torch draws the weights of its layers from an interval, and sets those of normalisation layers to one and zero. Training
moves some weights out of the interval. A network counts as new only if all its layers are of known kinds and look
freshly drawn, because a trained network that is mistaken for a new one would lose what it has learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import is_parametrized

_SLACK = 1 + 1e-5
"""Tolerance for rounding at the ends of the interval."""


def is_untrained(model: nn.Module) -> bool:
    """Whether all parameters look freshly initialised by torch and none is frozen."""
    if any(not p.requires_grad for p in model.parameters()):
        return False
    return all(
        _looks_drawn(layer) for layer in model.modules() if next(layer.parameters(recurse=False), None) is not None
    )


def is_pretrained(model: nn.Module) -> bool:
    """Whether a parameter is frozen, or the parameters look trained, for networks with any initialisation.

    Training moves the scales and shifts of normalisation layers, which begin as constants whatever the other layers
    are drawn from. In a network without such layers, a layer looks trained if neither torch nor an initialisation with
    a constant bias drew it.
    """
    if any(not p.requires_grad for p in model.parameters()):
        return True
    norms = [m for m in model.modules() if isinstance(m, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm)]
    if any(map(_batches_seen, norms)):
        return True
    scaled = [p.detach() for layer in norms for p in layer.parameters(recurse=False)]
    if scaled:
        return any(bool((p != p.flatten()[0]).any()) for p in scaled)
    weighted = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Bilinear | _ConvNd | nn.RNNBase)]
    return any(not _looks_drawn(layer) and not _constant_biases(layer) for layer in weighted)


def _batches_seen(layer: nn.Module) -> int:
    """The number of batches in the statistics of a layer."""
    return int(getattr(layer, "num_batches_tracked", None) or 0)


def _constant_biases(layer: nn.Module) -> bool:
    """Whether the biases of a layer are constants, or it has none."""
    biases = [p.detach() for name, p in layer.named_parameters(recurse=False) if "bias" in name]
    return all(bool((p == p.flatten()[0]).all()) for p in biases)


def _looks_drawn(layer: nn.Module) -> bool:
    if is_parametrized(layer):
        return False  # reading the weight of a layer with spectral normalisation would change its buffers
    named = dict(layer.named_parameters(recurse=False))
    weighted = isinstance(layer, nn.Linear | nn.Bilinear | _ConvNd | nn.Embedding | nn.EmbeddingBag)
    if weighted and "weight" not in named:
        return False  # torch.nn.utils.weight_norm computes the weight from parameters that the layer cannot draw
    if isinstance(layer, nn.Linear | nn.Bilinear | _ConvNd):
        weight = named["weight"]
        fan_in = weight.shape[1] * (1 if isinstance(layer, nn.Bilinear) else weight[0, 0].numel())
        return _within(named.values(), 1 / math.sqrt(fan_in))
    if isinstance(layer, nn.RNNBase):
        drawn = all(name.rpartition("_l")[2].removesuffix("_reverse").isdigit() for name in named)  # weight_ih_l0, …
        return drawn and _within(named.values(), 1 / math.sqrt(layer.hidden_size))
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return _standard_normal(layer)
    if isinstance(layer, nn.MultiheadAttention):
        weights = [named[name] for name in named if name.endswith("weight")]
        rest = [named[name] for name in named if not name.endswith("weight") and not name.startswith("bias_")]
        return all(_within([w], math.sqrt(6 / sum(w.shape))) for w in weights) and _constant(rest, 0.0)
    if not isinstance(layer, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm) or _batches_seen(layer):
        return False
    return _constant([named["weight"]], 1.0) and ("bias" not in named or _constant([named["bias"]], 0.0))


def _within(values: Iterable[Tensor], bound: float) -> bool:
    return all(float(v.detach().abs().max()) <= bound * _SLACK for v in values if v.numel())


def _constant(values: Iterable[Tensor], number: float) -> bool:
    return all(bool((v.detach() == number).all()) for v in values)


def _standard_normal(layer: nn.Embedding | nn.EmbeddingBag) -> bool:
    """Whether entries have mean 0 and variance 1 within five standard errors, without the padding row, which is 0."""
    rows = layer.weight.detach().double()
    if layer.padding_idx is not None:
        rows = torch.cat([rows[: layer.padding_idx], rows[layer.padding_idx + 1 :]])
    n = max(rows.numel(), 1)
    return abs(float(rows.mean())) <= 5 / math.sqrt(n) and abs(float((rows**2).mean()) - 1) <= 5 * math.sqrt(2 / n)
