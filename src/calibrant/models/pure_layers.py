"""BatchNorm and Dropout as pure functions: nothing is written, nothing is drawn inside.

* BatchNorm offers its new running statistics instead of storing them, and they carry gradient: a loss that is taken in
  evaluation mode depends on the training trajectory through them, and an exact hypergradient must see that.
* Dropout multiplies by a mask that comes from outside, so that a backward sweep replays the very same network, and a
  vectorised run draws what a single run draws.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from calibrant.data.batch import Tensors


class PureBatchNorm(_BatchNorm):
    """Normalises as the original does, and offers the new running statistics in ``fresh`` instead of storing them."""

    fresh: Tensors

    def forward(self, input: Tensor) -> Tensor:
        if not self.track_running_stats:
            return super().forward(input)
        self._check_input_dim(input)
        assert self.running_mean is not None
        assert self.running_var is not None
        if not self.training:  # torch's own kernel has no gradient in the running statistics
            scale = torch.rsqrt(self.running_var + self.eps)
            scale = scale if self.weight is None else scale * self.weight
            shift = -self.running_mean * scale
            shift = shift if self.bias is None else shift + self.bias
            shape = (1, -1) + (1,) * (input.dim() - 2)
            return input * scale.view(shape).to(input.dtype) + shift.view(shape).to(input.dtype)
        dims = [d for d in range(input.dim()) if d != 1]
        var, mean = torch.var_mean(input, dims, correction=1)
        # A layer that is called twice in one pass goes on from its first call.
        old_mean, old_var = (self.fresh.get(k, getattr(self, k)) for k in ("running_mean", "running_var"))
        assert self.num_batches_tracked is not None
        count = self.fresh.get("num_batches_tracked", self.num_batches_tracked) + 1
        rate = self.momentum if self.momentum is not None else 1 / count.to(mean.dtype)
        self.fresh = {
            "running_mean": old_mean + rate * (mean.to(old_mean.dtype) - old_mean),
            "running_var": old_var + rate * (var.to(old_var.dtype) - old_var),
            "num_batches_tracked": count,
        }
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


class MaskedDropout(nn.Module):
    """Dropout whose masks are inputs: ``mask0``, ``mask1``, … (one a call) are swapped in by the functional call."""

    def __init__(self, p: float, dims: int) -> None:
        super().__init__()
        self.p, self.dims = p, dims  # dims: how many trailing dimensions share one draw (Dropout2d: 2)
        self.calls, self.masked = 0, False
        self.probe: list[torch.Size] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        dims = 1 if (self.dims, x.dim()) == (2, 3) else self.dims  # torch reads three dimensions as (N, C, L) there
        shape = x.shape[: x.dim() - dims] + (1,) * dims
        if self.probe is not None:
            self.probe.append(shape)
        if not self.masked:
            return x * F.dropout(x.new_ones(shape), self.p, True)
        mask = getattr(self, f"mask{self.calls}", None)
        if mask is None:
            raise ValueError(
                f"A dropout layer was called {self.calls + 1} times, and masks were drawn for {self.calls}; how often "
                "a loss calls the network must depend on shapes alone."
            )
        self.calls += 1
        return x * mask


_CHANNEL_DIMS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def pure_class(kind: Any) -> Any:
    """The pure form of a BatchNorm class. It is made when it is needed, so it pickles by the class it was made of."""

    def reduce(layer: nn.Module, protocol: Any) -> Any:
        return _restored, (kind, layer.__dict__)

    return type(f"Pure{kind.__name__}", (PureBatchNorm, kind), {"__reduce_ex__": reduce})


def _restored(kind: Any, state: dict[str, Any]) -> nn.Module:
    made = pure_class(kind)
    layer = made.__new__(made)
    layer.__dict__.update(state)
    return layer


def purify(module: nn.Module) -> nn.Module:
    """Replace BatchNorm and Dropout layers by their pure forms; names and values stay."""
    if type(module) in _CHANNEL_DIMS:
        return _masked(module)
    for layer in module.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise ValueError("SyncBatchNorm has no pure form; use BatchNorm, or average the statistics outside.")
        if isinstance(layer, _BatchNorm) and type(layer).forward is not _BatchNorm.forward:
            warnings.warn(
                f"{type(layer).__name__} has a forward pass of its own, which is kept as it is: no gradient "
                "flows through its running statistics, so hypergradients with outer_mode='eval' leave that path out.",
                stacklevel=3,
            )
        elif isinstance(layer, _BatchNorm):
            layer.__class__ = pure_class(type(layer))
            layer.fresh = {}  # type: ignore[assignment]
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if name and type(layer) in _CHANNEL_DIMS:
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, _masked(layer))
    return module


def _masked(layer: nn.Module) -> nn.Module:
    assert isinstance(layer, _DropoutNd)
    return MaskedDropout(layer.p, _CHANNEL_DIMS[type(layer)]).train(layer.training)
