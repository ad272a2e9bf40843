"""The architecture of a module: the settings of its layers, and how they draw their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from calibrant.models.given import copied
from calibrant.models.seeding import seeded_start


def layer_settings(module: nn.Module) -> tuple[str, list[dict[str, str | int | float | None]]]:
    """The layers as they print, and their plain attributes, some of which are not printed."""
    return str(module), [
        {k: v for k, v in vars(layer).items() if not k.startswith("_") and isinstance(v, str | int | float | None)}
        | {"training": None}  # each pass sets the mode again
        for layer in module.modules()
    ]


def resettable_copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU in the default precision, checked that all its parameters can be drawn again."""
    scratch = copied(module).to("cpu", torch.get_default_dtype())
    for layer in _as_built(scratch):
        if any(p.numel() for p in layer.parameters(recurse=False)) and _reset(layer) is None:
            raise ValueError(
                f"{type(layer).__name__} must have reset_parameters() to draw its parameters from a seed. Add it, or "
                "give a module instead of a seed."
            )
    return scratch


def reset_layers(module: nn.Module, seed: int) -> None:
    """Draw the parameters of all layers again, in the order in which the layers are built."""
    with torch.no_grad(), seeded_start(seed):
        for layer in _as_built(module):
            if (reset := _reset(layer)) is not None:
                reset()


def _as_built(module: nn.Module) -> Iterator[nn.Module]:
    """All layers, inner layers first, since a constructor builds its parts first."""
    for child in module.children():
        yield from _as_built(child)
    yield module


def _reset(layer: nn.Module) -> Callable[[], None] | None:
    """The method that draws a layer's parameters. That of attention has an underscore."""
    return getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
