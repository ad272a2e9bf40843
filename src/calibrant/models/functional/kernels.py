"""Fused kernels without a correct second derivative, and the plain forms that replace them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class FusedKernels:
    """Detects which fused kernels a computation uses, and replaces those that have no second derivative.

    Fused attention and cuDNN's recurrent networks can be differentiated only once. The fused kernel of weight
    normalisation has a wrong second derivative: it treats the norms as constants. ``with kernels.observed():`` watches
    one evaluation. ``with kernels.replaced():`` then uses the plain forms of the kernels that were seen; it costs
    nothing if there were none.
    """

    def __init__(self, module: nn.Module) -> None:
        self.attention = self.weight_norm = False
        self.recurrent = any(isinstance(m, nn.RNNBase) for m in module.modules()) and torch.cuda.is_available()

    def observed(self) -> contextlib.AbstractContextManager[Any]:
        """Watch for fused attention and fused weight normalisation."""
        return _KernelWatch(self)

    def replaced(self, *, twice: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Use kernels that can be differentiated twice; with ``twice=False``, once, also in evaluation mode."""
        attention, weight_norm = self.attention and twice, self.weight_norm and twice
        if not (attention or weight_norm or self.recurrent):
            return _NOTHING
        stack = contextlib.ExitStack()
        if attention:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if weight_norm:
            stack.enter_context(_PlainWeightNorm())
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


class _KernelWatch(TorchDispatchMode):
    def __init__(self, kernels: FusedKernels) -> None:
        super().__init__()
        self.kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels.attention |= "_scaled_dot_product" in func.name()
        self.kernels.weight_norm |= "_weight_norm" in func.name()
        return func(*args, **(kwargs or {}))


class _PlainWeightNorm(TorchFunctionMode):
    """Computes ``v·g/‖v‖`` step by step instead of with the fused kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._weight_norm:
            return _weight_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))
