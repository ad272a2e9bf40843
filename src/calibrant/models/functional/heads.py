"""The head of a network (the layer that computes the logits) and its body (which computes the features)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.models.functional.network import call, logits_of

LINEAR = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""The types of layers that can be found as a head. Other heads must be named."""


@dataclass(frozen=True)
class Head:
    """The two parts of a network: ``logits = head(features)`` and ``features = body(inputs)``.

    ``body`` is the network with an identity in place of the head. It shares its layers with the network.
    """

    name: str
    """The head's name in the module. It is empty if the whole module is the head."""
    head: nn.Module
    body: nn.Module
    copies: tuple[nn.Module, ...] = ()
    """The modules of ``body`` that are copies: those that contain the head."""

    def owns(self, parameter: str) -> bool:
        """Whether a named parameter of the module belongs to the head."""
        return not self.name or parameter == self.name or parameter.startswith(self.name + ".")


def find_head(module: nn.Module, inputs: Any, name: str | None = None) -> Head:
    """Find the head by running ``module`` on ``inputs`` in evaluation mode, or check the one called ``name``.

    The head is the one linear layer whose output *is* the logits and that is called once in a pass. If there is none (a
    norm or a sum follows it, or the decoder is tied to an embedding), the error lists the candidates. Name one of them,
    or put the end of the network into one submodule and name that.
    """
    calls = _Calls(module)
    with torch.no_grad(), calls:
        logits = logits_of(call(module, inputs))
    if name is None:
        candidates = [k for k, layer in module.named_modules() if isinstance(layer, LINEAR) and calls.gives(k, logits)]
        if len(candidates) != 1:
            raise ValueError(
                "The head could not be found: the logits are not the output of one linear layer. "
                + _advice(calls, logits)
            )
        name = candidates[0]
    _check(module, name, calls, logits)
    parts = divide(module, name)
    apart = _Calls(parts.head)
    with torch.no_grad(), _Calls(parts.body), apart:  # in evaluation mode
        call(parts.body, inputs)
    if name and apart.outputs:
        raise ValueError(
            f"The head {name!r} must be called through the network's attribute {name!r}, so that the body can run "
            "without it; it was called through another reference, such as a list. Use nn.ModuleList, or scope='all'."
        )
    return parts


def divide(module: nn.Module, name: str) -> Head:
    """The head called ``name``, and the body: the module with an identity in place of the head."""
    if not name:
        return Head("", module, nn.Identity())
    head = module.get_submodule(name)
    copies = [_shallow(module)]
    parts = name.split(".")
    for part in parts[:-1]:
        child = _shallow(copies[-1].get_submodule(part))
        copies[-1]._modules[part] = child
        copies.append(child)
    copies[-1]._modules[parts[-1]] = nn.Identity()
    return Head(name, head, copies[0], tuple(copies))


def _shallow(module: nn.Module) -> nn.Module:
    """A shallow copy of a module with its own table of the same submodules."""
    twin = copy.copy(module)
    twin.__dict__ = dict(module.__dict__)
    twin._modules = dict(module._modules)
    return twin


def _check(module: nn.Module, name: str, calls: _Calls, logits: Tensor) -> None:
    modules = dict(module.named_modules())
    if name not in modules:
        raise ValueError(f"head must be the name of a submodule; got {name!r}. {_advice(calls, logits)}")
    if len(calls.outputs.get(name, ())) != 1:
        times = len(calls.outputs.get(name, ()))
        raise ValueError(
            f"The head must be called once in a pass; got {times} calls of {name!r}. {_advice(calls, logits)}"
        )
    if not calls.gives(name, logits):
        raise ValueError(
            f"The head's output must be the logits; something follows {name or 'it'!r}. {_advice(calls, logits)}"
        )
    if not calls.takes_tensor(name):
        raise ValueError(f"The head must take one tensor, its features; got other arguments for {name!r}.")
    head_parameters = {id(p): k for k, p in modules[name].named_parameters()}
    for other, layer in modules.items():
        if other == name or other.startswith(name + ".") or not name or name.startswith(other + ".") or not other:
            continue
        for parameter in layer.parameters(recurse=False):
            if id(parameter) in head_parameters:
                raise ValueError(
                    f"The head must not share parameters; {name!r} shares {head_parameters[id(parameter)]!r} with "
                    f"{other!r}. Untie them, or use scope='all'."
                )


def _advice(calls: _Calls, logits: Tensor) -> str:
    """Which submodules can be the head, or what to do if none can."""
    named = {k: m for k, m in calls.module.named_modules() if k and calls.outputs.get(k)}
    # A norm or a scale at the end has as many inputs as outputs; the layer before it belongs to the head.
    able = [
        f"head={k!r} ({type(m).__name__})"
        for k, m in named.items()
        if calls.gives(k, logits)
        and next(m.parameters(), None) is not None
        and len(calls.outputs[k]) == 1
        and calls.takes_tensor(k)
        and calls.inputs[k][0].shape != logits.shape
    ]
    if able:
        return f"Name a submodule whose output is the logits: {' or '.join(able)}."
    linear = [f"{k!r}" for k, m in named.items() if isinstance(m, LINEAR)]
    last = max(named, key=lambda k: calls.order[k], default=None)
    last_layer = "none" if last is None else f"{last!r} ({type(named[last]).__name__})"
    return (
        "Put the last layer and everything after it into one submodule of the network, and name that with head='…'. "
        f"Linear layers that ran: {', '.join(linear) or 'none'}; the last layer that ran: {last_layer}."
    )


class _Calls:
    """Records the calls of all submodules: their inputs, outputs and order."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.outputs: dict[str, list[Any]] = {}
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.order: dict[str, int] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> _Calls:
        self._training = [m for m in self.module.modules() if m.training]
        self.module.eval()
        for name, layer in self.module.named_modules():
            self._hooks.append(layer.register_forward_hook(self._note(name), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for layer in self._training:
            layer.training = True

    def _note(self, name: str) -> Any:
        def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self.outputs.setdefault(name, []).append(output)
            self.inputs[name] = (*args, *kwargs.values())
            self.order[name] = len(self.order)

        return note

    def gives(self, name: str, logits: Tensor) -> bool:
        """Whether the last output of this submodule is the tensor of logits itself."""
        outputs = self.outputs.get(name)
        if not outputs:
            return False
        try:
            return logits_of(outputs[-1]) is logits
        except ValueError:
            return False

    def takes_tensor(self, name: str) -> bool:
        """Whether this submodule was called with one tensor."""
        return len(self.inputs[name]) == 1 and isinstance(self.inputs[name][0], Tensor)
