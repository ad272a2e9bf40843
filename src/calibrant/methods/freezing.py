"""Freezing: parts of a network that are not trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from calibrant.models.functional.global_state import generators_restored
from calibrant.models.functional.heads import Head, find_head
from calibrant.models.functional.user_modules import copied

Freeze = Literal["backbone"] | Sequence[str]


def frozen(model: nn.Module, freeze: Freeze | None, inputs: Any, head: str | None = None) -> nn.Module:
    """A copy of a network in which some parts are not trained.

    Their parameters have ``requires_grad=False``. Their layers are in evaluation mode, so that dropout is off and the
    statistics of BatchNorm do not change.

    Parameters
    ----------
    model : nn.Module
    freeze : "backbone", names of submodules or parameters, or None
        "backbone" is everything except the head.
    inputs : a few inputs, used to find the head
    head : the name of the head; None: find it automatically
    """
    twin = copied(model)
    if freeze is not None:
        backbone = isinstance(freeze, str) and freeze == "backbone"
        names = [freeze] if isinstance(freeze, str) else list(freeze)
        if backbone:
            own = head_of(twin, inputs, head).name
            names = [k for k, _ in twin.named_parameters() if not (k == own or k.startswith(f"{own}."))]
            for name, layer in twin.named_modules():
                if name and not (name == own or name.startswith(f"{own}.") or own.startswith(f"{name}.")):
                    layer.training = False
        for name in names:
            _freeze(twin, name)
    if not any(p.requires_grad for p in twin.parameters()):
        raise ValueError(
            "There is nothing to train: every parameter of the model is frozen (requires_grad=False). Keep at least "
            "the head trainable, as freeze='backbone' does."
        )
    return twin


def head_of(model: nn.Module, inputs: Any, name: str | None = None) -> Head:
    """The head of a network, found automatically or by name, without a change of torch's random numbers."""
    with generators_restored(next(model.parameters())):
        return find_head(model, inputs, name)


def _freeze(model: nn.Module, name: str) -> None:
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
    if name in parameters:
        parameters[name].requires_grad_(False)
    elif name in modules and name:
        modules[name].requires_grad_(False).eval()
    else:
        known = ", ".join(repr(k) for k, _ in model.named_children())
        raise ValueError(
            f"freeze names {name!r}, which the model does not have. Its parts are {known}; name nested parts with "
            "dots. freeze='backbone' freezes everything except the head."
        )
