"""Fused kernels that can be differentiated only once, and their plain forms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode


class FusedKernels:
    """Finds out which fused kernels a computation uses, and replaces those that have no second derivative.

    Fused attention, and cuDNN's recurrent nets, can be differentiated once only. ``with kernels.observed():`` watches
    one evaluation; ``with kernels.replaced():`` then takes the plain forms of what was seen, and costs nothing
    otherwise.
    """

    def __init__(self, module: nn.Module) -> None:
        self.attention = False
        self.recurrent = any(isinstance(m, nn.RNNBase) for m in module.modules()) and torch.cuda.is_available()

    def observed(self) -> contextlib.AbstractContextManager[Any]:
        """Watch for fused attention."""
        return _AttentionWatch(self)

    def replaced(self, *, twice: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Differentiate what is computed inside, twice or (in evaluation mode, where cuDNN has no gradient) once."""
        attention = self.attention and twice
        if not (attention or self.recurrent):
            return _NOTHING
        stack = contextlib.ExitStack()
        if attention:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if self.recurrent:
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        return stack


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Leave oneDNN's fused kernels out: tracing cannot record the backward pass of its LSTM.

    Convolutions and matrix products are recorded by their general names and still use oneDNN when they are replayed.
    """
    enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = enabled


_NOTHING = contextlib.nullcontext()


class _AttentionWatch(TorchDispatchMode):
    def __init__(self, kernels: FusedKernels) -> None:
        super().__init__()
        self.kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels.attention |= "_scaled_dot_product" in func.name()
        return func(*args, **(kwargs or {}))
