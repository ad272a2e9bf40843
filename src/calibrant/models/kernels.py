"""Fused kernels that can be differentiated only once, and the plain forms that replace them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode


class FusedKernels:
    """Detects which fused kernels a computation uses, and replaces those that have no second derivative.

    Fused attention and cuDNN's recurrent networks can be differentiated only once. ``with kernels.observed():`` watches
    one evaluation. ``with kernels.replaced():`` then uses the plain forms of the kernels that were seen; it costs
    nothing if there were none.
    """

    def __init__(self, module: nn.Module) -> None:
        self.attention = False
        self.recurrent = any(isinstance(m, nn.RNNBase) for m in module.modules()) and torch.cuda.is_available()

    def observed(self) -> contextlib.AbstractContextManager[Any]:
        """Watch for fused attention."""
        return _AttentionWatch(self)

    def replaced(self, *, twice: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Use kernels that can be differentiated twice; with ``twice=False``, once, also in evaluation mode."""
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
    """Run without oneDNN's fused kernels, because tracing cannot record the backward pass of its LSTM.

    Convolutions and matrix products are recorded by their general names, so they still use oneDNN when replayed.
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
