"""The logits of a module, for the usual forms of inputs and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor, nn


def logits_of(output: Any) -> Tensor:
    """The logits in a module's output: a tensor, ``(logits, …)``, a mapping with "logits" or an object with .logits."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    else:
        found = output[0] if isinstance(output, list | tuple) and output else None
    if not isinstance(found, Tensor):
        keys = f" with {', '.join(map(repr, output))}" if isinstance(output, Mapping) else ""
        raise ValueError(
            "A network must return logits: a tensor, (logits, …), a mapping with 'logits' or an object with .logits; "
            f"got {type(output).__name__}{keys}."
        )
    return found


def call(module: Any, inputs: Any, forward: nn.Module | None = None) -> Any:
    """``module(inputs)``; a mapping whose keys are names of arguments is passed as ``module(**inputs)``.

    ``forward`` is the module whose signature is read, if ``module`` is a wrapper around it.
    """
    if isinstance(inputs, Mapping) and takes_by_name(forward or module, inputs):
        return module(**inputs)
    return module(inputs)


def accepted_names(module: nn.Module) -> frozenset[str] | None:
    """The argument names of a module's forward pass. None means that it accepts any name."""
    parameters = _parameters(module)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def positional_names(module: nn.Module) -> tuple[tuple[str, ...], int]:
    """The positional arguments of a module's forward pass, and how many of them have no default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in _parameters(module) if p.kind in kinds]
    return tuple(p.name for p in taken), sum(p.default is inspect.Parameter.empty for p in taken)


def takes_by_name(module: nn.Module, names: Iterable[str]) -> bool:
    """Whether a module's forward pass has an argument for each of these names."""
    accepted = accepted_names(module)
    return accepted is None or all(name in accepted for name in names)


def _parameters(module: nn.Module) -> tuple[inspect.Parameter, ...]:
    """The parameters of a module's forward pass, read once for each class of modules."""
    forward = module.forward
    if not inspect.ismethod(forward):
        return tuple(inspect.signature(forward).parameters.values())
    own, *rest = _signature(forward.__func__)
    return (own, *rest) if own.kind is inspect.Parameter.VAR_POSITIONAL else tuple(rest)


@lru_cache(256)
def _signature(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function).parameters.values())
