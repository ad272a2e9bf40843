"""How to train a network alone, by its kind: the recipes as values, and the rules that tell the kind.

The rules are tried in this order:

=========== ===========================================================================================================
pretrained  the caller says so, a parameter is frozen, or parameters look trained (:func:`is_pretrained`)
recurrent   a recurrent layer of torch (``nn.LSTM``, ``nn.GRUCell``, …)
transformer ``nn.MultiheadAttention``, a layer whose class name contains "attention" or "transformer", or LayerNorm or
            RMSNorm in a network without BatchNorm
convolution a convolution and BatchNorm
other-conv  a convolution without BatchNorm
perceptron  everything else: perceptrons on tables or embeddings
=========== ===========================================================================================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from calibrant.bilevel import SGD, Adam, AdamW, Optimizer
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.fit.untrained import is_pretrained
from calibrant.models.functional.user_modules import unwrapped

Kind = Literal["convolution", "other-conv", "transformer", "pretrained", "pretrained-conv", "recurrent", "perceptron"]


def _recipe(kind: str, optimizer: Optimizer, **settings: Any) -> AveragedNetwork:
    return AveragedNetwork(optimizer=optimizer, precision="auto", patience=None, restarts=4, kind=kind, **settings)


def _sgd(rate: float) -> SGD:
    return SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-4)


def _adamw(rate: float, decay: float, clip: float | None = None) -> AdamW:
    return AdamW(rate, weight_decay=decay, decay_on="weights", clip_norm=clip)


RECIPES: dict[Kind, AveragedNetwork] = {
    "convolution": _recipe("convolutional network with BatchNorm", _sgd(0.2)),
    "transformer": _recipe("transformer", _adamw(1e-3, 0.2, clip=1.0), warmup=0.3),
    "recurrent": _recipe("recurrent network", _adamw(6e-3, 0.2, clip=1.0)),
    "other-conv": _recipe("convolutional network without BatchNorm", _adamw(4e-3, 0.2)),
    "perceptron": _recipe("perceptron", _adamw(4e-3, 0.2)),
    "pretrained": _recipe("pretrained network", _adamw(1e-4, 0.01, clip=1.0), steps=400, passes=4),
    "pretrained-conv": _recipe("pretrained convolutional network with BatchNorm", _adamw(1e-3, 0.05, clip=1.0)),
}
"""One row for each kind. Learning rates are for batches of about 128 samples; see :func:`recipe_for`."""
SMALL_RECIPES: dict[Kind, AveragedNetwork] = {
    "convolution": _recipe("small convolutional network with BatchNorm", _sgd(0.3)),
    "transformer": _recipe("small transformer", _adamw(6e-3, 0.5, clip=1.0)),
    "recurrent": _recipe("small recurrent network", _adamw(2e-2, 0.2, clip=1.0)),
    "other-conv": _recipe("small convolutional network without BatchNorm", _adamw(12e-3, 0.5)),
    "perceptron": _recipe("small perceptron", _adamw(4e-3, 0.5)),
}
"""Small networks bear higher rates, and need them in a short run."""
SMALL, LARGE = 100_000, 1_000_000
"""Trainable parameters below which a network is small, and above which a pretrained network needs low rates."""
BATCH, LARGEST_FACTOR = 128, 3.0
"""The batch size above which the rate of Adam grows with the root of the size, and its largest factor."""


def recipe_for(
    module: nn.Module, pretrained: bool | None = None, batch_size: int = BATCH, *, few: bool = False
) -> AveragedNetwork:
    """The recipe for a network. ``pretrained`` overrides :func:`is_pretrained`; ``few`` says that samples are few.

    For batches of more than 128 samples, the rate of Adam is multiplied by the root of ``batch_size / 128``, at most by
    3. That of SGD, and the low rates of pretrained networks, are not changed.

    A network that looks pretrained, but has at most a million trainable parameters, gets the recipe of its
    architecture: thousands of samples tell such a network more than its start. For the same reason, a larger
    convolutional network with BatchNorm that looks pretrained has a row with a higher rate, unless samples are few.
    """
    kind, count = kind_of(module, pretrained), sum(p.numel() for p in module.parameters() if p.requires_grad)
    if kind == "pretrained" and pretrained is None:
        if count <= LARGE:
            row = recipe_for(module, False, batch_size)
            return replace(row, kind=f"{row.kind}, pretrained")
        if not few and kind_of(module, False) == "convolution":
            return RECIPES["pretrained-conv"]
    row = SMALL_RECIPES.get(kind, RECIPES[kind]) if count < SMALL else RECIPES[kind]
    if batch_size <= BATCH or kind == "pretrained" or not isinstance(row.optimizer, Adam):
        return row
    rate = row.rate * min(LARGEST_FACTOR, (batch_size / BATCH) ** 0.5)
    return replace(row, optimizer=replace(row.optimizer, learning_rate=rate))


def kind_of(module: nn.Module, pretrained: bool | None = None) -> Kind:
    """The kind of a network, by the rules at the top of this file."""
    if is_pretrained(module) if pretrained is None else pretrained:
        return "pretrained"
    layers = list(module.modules())
    if any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in layers):
        return "recurrent"
    normalised = any(isinstance(layer, _BatchNorm) for layer in layers)
    other_norm = not normalised and any(isinstance(layer, nn.LayerNorm | nn.RMSNorm) for layer in layers)
    if other_norm or any(_attends(layer) for layer in layers):
        return "transformer"
    if any(isinstance(layer, _ConvNd) for layer in layers):
        return "convolution" if normalised else "other-conv"
    return "perceptron"


def _attends(layer: nn.Module) -> bool:
    name = type(layer).__name__.lower()
    return isinstance(layer, nn.MultiheadAttention) or "attention" in name or "transformer" in name


def as_optimizer(optimizer: Any, model: Any = None) -> Optimizer:
    """An optimiser of the engine, from one of the engine or of torch (SGD, Adam or AdamW).

    Of a torch optimiser only the settings are used. Its groups may have different learning rates and weight decays if
    it holds the parameters of ``model``; parameters of ``model`` that it leaves out are not trained.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be one of calibrant.bilevel, such as SGD(0.1, momentum=0.9), or an SGD, Adam or AdamW of "
            f"torch.optim; got {optimizer!r}."
        )
    name, parts = type(optimizer).__name__, optimizer.param_groups
    first, shared = parts[0], ("momentum", "nesterov", "betas", "eps", "decoupled_weight_decay")
    odd = [key for key in ("dampening", "maximize", "amsgrad") if any(part.get(key) for part in parts)]
    odd += [key for key in shared if any(part.get(key) != first.get(key) for part in parts)]
    if name not in ("SGD", "Adam", "AdamW") or odd:
        raise ValueError(
            "optimizer must be torch's SGD, Adam or AdamW without dampening, maximize and amsgrad, and its groups of "
            f"parameters may differ in lr and weight_decay only; got {name}{' with ' * bool(odd)}{', '.join(odd)}."
        )
    rate = max(float(part["lr"]) for part in parts)
    settings: dict[str, Any] = {"weight_decay": float(first["weight_decay"]), "groups": _groups(parts, rate, model)}
    if name == "SGD":
        return SGD(rate, momentum=first["momentum"], nesterov=first["nesterov"], **settings)
    kind = AdamW if name == "AdamW" or first.get("decoupled_weight_decay") else Adam
    return kind(rate, betas=tuple(first["betas"]), eps=first["eps"], **settings)


def _groups(parts: list[dict[str, Any]], rate: float, model: Any) -> tuple[tuple[str, float, float], ...]:
    """Name, share of the learning rate and weight decay of each parameter of a torch optimiser.

    Empty if it has one group, with all trainable parameters of the model or with those of another model.
    """
    held = {id(p): part for part in parts for p in part["params"]}
    named = dict(unwrapped(model).named_parameters()) if isinstance(model, nn.Module) else {}
    part_of = {name: held[id(p)] for name, p in named.items() if id(p) in held}
    if len(parts) == 1 and (not part_of or all(name in part_of for name, p in named.items() if p.requires_grad)):
        return ()
    if len(part_of) < len(held):
        raise ValueError(
            "optimizer must hold parameters of model if it has several groups or leaves some out; got "
            f"{len(held) - len(part_of)} of {len(held)} parameters from something else."
        )
    return tuple((name, float(p["lr"]) / (rate or 1.0), float(p["weight_decay"])) for name, p in part_of.items())
