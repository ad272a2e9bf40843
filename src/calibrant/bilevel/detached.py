"""Detached tensors in the inner loss, through which a hypergradient must still differentiate.

A loss such as ``focal(logits, y, gamma_net(features.detach()))`` is differentiated with γ held fixed. But its gradient
``g(θ)`` depends on θ through γ, and so does every later step. Double backward misses that path, because ``detach()``
cut it in the forward pass. Here a detached tensor keeps its graph behind a :class:`Gate`. The gate is closed while
``g`` is computed, and open while ``g`` is differentiated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_DETACH = (Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
_TO_NUMPY = (Tensor.numpy, Tensor.__array__, Tensor.tolist)
_SET_GRAD = torch._C._set_grad_enabled


class Gate:
    """A switch: gradient passes through detached tensors while ``open`` is True.

    It is closed while the gradient is computed, and open while that gradient is differentiated.
    """

    def __init__(self) -> None:
        self.open = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Let gradient pass inside the block."""
        self.open = True
        try:
            yield
        finally:
            self.open = False


class _Gated(torch.autograd.Function):
    """The identity. Its gradient is zero unless the gate is open."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gate: Gate) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.gate = inputs[1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return (slope if ctx.gate.open else torch.zeros_like(slope)), None


def constant(tensor: Tensor) -> Tensor:
    """A detached tensor that stays a constant for hypergradients, too, because no gate replaces it."""
    with torch._C.DisableTorchFunction():
        return tensor.detach()


class Watch(TorchFunctionMode):
    """Detects whether a loss detaches anything, by ``detach()``, ``.data`` or ``torch.no_grad()``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= func in _DETACH or (func is _SET_GRAD and not args[0])
        return func(*args, **(kwargs or {}))


class Keep(TorchFunctionMode):
    """Replaces every ``detach()``, ``.data`` and ``torch.no_grad()`` inside the block by a gate.

    Operations under ``torch.no_grad()`` are still recorded. Their results pass the gate when they are used outside.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self._inside: dict[int, Tensor] = {}
        self._gated: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SET_GRAD:
            return func(*args, **kwargs)
        if func in _TO_NUMPY:
            return func(args[0].detach(), *args[1:], **kwargs)
        if not torch.is_grad_enabled():
            return self._under_no_grad(func, args, kwargs)
        if self._inside:
            args, kwargs = pytree.tree_map(self._passed, (args, kwargs))
        if func in _DETACH and args[0].is_floating_point():  # under vmap, requires_grad is always False
            return _Gated.apply(args[0], self.gate)
        return func(*args, **kwargs)

    def _under_no_grad(self, func: Any, args: Any, kwargs: Any) -> Any:
        # Values are saved as copies, because code under no_grad may overwrite them, as spectral normalisation does.
        with torch.enable_grad(), saved_tensors_hooks(torch.clone, _unchanged):
            if func in _DETACH and args[0].is_floating_point():
                result = args[0].view_as(args[0])
            elif kwargs.get("out") is not None:  # autograd does not record writing into given tensors
                given = {k: v for k, v in kwargs.items() if k != "out"}
                result = kwargs["out"].copy_(func(*args, **given))
            else:
                result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                self._inside[id(leaf)] = leaf
        return result

    def _passed(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) not in self._inside:
            return leaf
        if id(leaf) not in self._gated:
            self._gated[id(leaf)] = _Gated.apply(leaf, self.gate)
        return self._gated[id(leaf)]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor
