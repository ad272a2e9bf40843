"""Modules of users: checked, without wrappers, copied, and with fresh parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from calibrant.data.streams.batch import tensors_of
from calibrant.models.functional.global_state import seeded_start


def unwrapped(module: nn.Module) -> nn.Module:
    """The network inside the wrappers of ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``.

    Wrappers hide the layers and the names of the arguments. The engine swaps the parameters of the network itself.
    """
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):  # the result of torch.compile
            module = inner
        else:
            return module


def check_module(module: nn.Module) -> None:
    """Raise an error for networks that cannot be copied or trained."""
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            "model must be an ordinary nn.Module; got a ScriptModule, whose parameters cannot be replaced. Pass the "
            "module that it was made from."
        )
    lazy = [k for k, t in (*module.named_parameters(), *module.named_buffers()) if is_lazy(t)]
    if lazy:
        raise ValueError(
            f"model has lazy layers without parameters ({', '.join(lazy[:3])}{', …' if lazy[3:] else ''}). Call it "
            "once on a batch of inputs first."
        )
    if any(p.is_meta for p in module.parameters()):
        raise ValueError(
            'model must have values; got parameters on the device "meta". Create it on the CPU, or call '
            'model.to_empty(device="cpu") and set its parameters.'
        )


def leading_parameter(module: nn.Module) -> nn.Parameter:
    """The first parameter with a floating-point precision. Inputs get its device and precision.

    Frozen weights of a quantised network may be integers.
    """
    return next(p for p in module.parameters() if p.is_floating_point())


def copied(module: nn.Module) -> nn.Module:
    """A deep copy. Tensors that the module keeps from earlier calls lose their graph, which cannot be copied.

    Such tensors are the weights of ``torch.nn.utils.weight_norm``, or activations that are stored for later use.
    """
    memo: dict[int, Tensor] = {}
    for layer in module.modules():
        for value in tensors_of(list(vars(layer).values())):
            if not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


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
