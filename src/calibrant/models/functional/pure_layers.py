"""Normalisation and dropout as pure functions: BatchNorm, InstanceNorm, and masks drawn outside the network.

BatchNorm, InstanceNorm and Dropout as pure functions, which write nothing and draw nothing.

* Norms return their new running statistics instead of storing them, and the statistics carry gradient. A loss in
  evaluation mode depends on the training trajectory through them, so an exact hypergradient needs that gradient.
* Dropout multiplies by a mask that is an input. So a backward sweep replays the same network, and a vectorised run uses
  the masks of single runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from calibrant.data.streams.batch import Tensors
from calibrant.models.functional.global_state import generators_restored


class PureNorm(_NormBase):
    """Base class of the pure forms of BatchNorm and InstanceNorm.

    ``fresh`` holds the running statistics after a training pass. Statistics have the precision of the buffers, also
    if autocast lowers the precision of the activations.
    """

    fresh: Tensors
    original: type[nn.Module]
    """The original class of the layer."""

    def _by_running_statistics(self, input: Tensor) -> Tensor:
        """The output in evaluation mode, since torch's own kernel has no gradient in the running statistics."""
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = torch.rsqrt(self.running_var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -self.running_mean * scale
        shift = shift if self.bias is None else shift + self.bias
        shape = (1, -1) + (1,) * (input.dim() - 2)
        return (input.to(scale.dtype) * scale.view(shape) + shift.view(shape)).to(input.dtype)

    def _statistics(self, input: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
        """The mean and the unbiased variance over ``dims``."""
        assert self.running_mean is not None
        var, mean = torch.var_mean(input.to(self.running_mean.dtype), dims, correction=1)
        return mean, var

    def _move(self, rate: float | Tensor, mean: Tensor, var: Tensor) -> None:
        """Move the statistics in ``fresh`` towards those of the batch. A second call in a pass continues the first."""
        for name, value in (("running_mean", mean), ("running_var", var)):
            old = self.fresh.get(name, getattr(self, name))
            self.fresh = self.fresh | {name: old + rate * (value - old)}


class PureBatchNorm(PureNorm, _BatchNorm):
    """BatchNorm that puts its new running statistics into ``fresh`` instead of storing them."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.track_running_stats:
            return super().forward(input)
        self._check_input_dim(input)
        if not self.training:
            return self._by_running_statistics(input)
        if input.numel() == input.shape[1]:
            raise ValueError(
                f"BatchNorm needs more than one value per channel in training; got shape {tuple(input.shape)}. Use "
                "larger batches, and drop_last=True to leave out a last batch of one sample."
            )
        mean, var = self._statistics(input, [d for d in range(input.dim()) if d != 1])
        assert self.num_batches_tracked is not None
        count = self.fresh.get("num_batches_tracked", self.num_batches_tracked) + 1
        self._move(self.momentum if self.momentum is not None else 1 / count.to(mean.dtype), mean, var)
        self.fresh = self.fresh | {"num_batches_tracked": count}
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


class LocalBatchNorm(_BatchNorm):
    """SyncBatchNorm in one process, where there is nothing to synchronise. Unlike torch's, it runs on a CPU."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Inputs may have any number of dimensions."""


class PureInstanceNorm(PureNorm, _InstanceNorm):
    """InstanceNorm that puts its new running statistics, means over the samples, into ``fresh``."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.track_running_stats:
            return super().forward(input)
        self._check_input_dim(input)
        if input.dim() == self._get_no_batch_dim():
            return self.forward(input.unsqueeze(0)).squeeze(0)
        if not self.training:
            return self._by_running_statistics(input)
        output = F.instance_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
        mean, var = self._statistics(input, list(range(2, input.dim())))
        self._move(self.momentum if self.momentum is not None else 0.0, mean.mean(0), var.mean(0))
        return output


class MaskedDropout(nn.Module):
    """Dropout whose masks are inputs: ``functional_call`` sets ``mask0``, ``mask1``, …, one for each call."""

    def __init__(self, p: float, dims: int) -> None:
        super().__init__()
        self.p, self.dims = p, dims  # dims: the number of trailing dimensions that share one draw (Dropout2d: 2)
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
            if dims == 0:
                return F.dropout(x, self.p, True)
            return x * F.dropout(x.new_ones(shape), self.p, True)
        mask = getattr(self, f"mask{self.calls}", None)
        if mask is None:
            raise ValueError(
                f"A dropout layer must be called at most {self.calls} times, since masks were drawn for these calls; "
                f"got call {self.calls + 1}. The number of calls of the network may depend on shapes only."
            )
        self.calls += 1
        return x * mask


_NORMS: dict[type[nn.Module], type[PureNorm]] = {_BatchNorm: PureBatchNorm, _InstanceNorm: PureInstanceNorm}
_CHANNEL_DIMS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def pure_class(kind: Any, pure: Any) -> Any:
    """The pure form of a norm's class. It is made at run time, so it is pickled by its two base classes."""

    def reduce(layer: nn.Module, protocol: Any) -> Any:
        return _restored, (kind, pure, layer.__dict__)

    return type(f"Pure{kind.__name__}", (pure, kind), {"__reduce_ex__": reduce, "original": kind})


def _restored(kind: Any, pure: Any, state: dict[str, Any]) -> nn.Module:
    layer_class = pure_class(kind, pure)
    layer = layer_class.__new__(layer_class)
    layer.__dict__.update(state)
    return layer


def purify(module: nn.Module) -> nn.Module:
    """Replace norms with running statistics and Dropout layers by their pure forms. Names and values stay the same."""
    if type(module) in _CHANNEL_DIMS:
        return _masked(module)
    for layer in module.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            layer.__class__ = LocalBatchNorm  # type: ignore[assignment]
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False  # gradients are written into one dense vector
        for kind, pure in _NORMS.items():  # subclasses that override ``forward`` are not changed
            if isinstance(layer, kind) and type(layer).forward is kind.forward:
                layer.__class__ = pure_class(type(layer), pure)
                layer.fresh = {}  # type: ignore[assignment]
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if name and type(layer) in _CHANNEL_DIMS:
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, _masked(layer))
    return module


def _masked(layer: nn.Module) -> nn.Module:
    assert isinstance(layer, _DropoutNd)
    return MaskedDropout(layer.p, _CHANNEL_DIMS[type(layer)]).train(layer.training)


class DropoutMasks:
    """Draws the masks of a network's dropout layers."""

    def __init__(self, layers: Mapping[str, MaskedDropout]) -> None:
        self.layers = layers
        self._shapes: dict[Any, dict[str, list[torch.Size]]] = {}

    def draw(self, seed: int | Sequence[int], key: Any, run: Callable[[], Any], like: Tensor) -> Tensors:
        """The masks for the computation ``run``, which ``key`` identifies, with the dtype and device of ``like``."""
        if key not in self._shapes:
            self._shapes[key] = self._probe(run, like)
        generators = [np.random.SFC64(one_seed) for one_seed in ([seed] if isinstance(seed, int) else seed)]
        masks = {}
        for name, shapes in self._shapes[key].items():
            p = self.layers[name].p
            for position, shape in enumerate(shapes):
                keep = _kept(shape.numel(), p, generators, like.device)
                mask = keep.to(like.dtype).mul_(1 / (1 - p) if p < 1 else 1.0)
                mask = mask.view(shape if isinstance(seed, int) else (len(generators), *shape))
                masks[f"{name}.mask{position}".removeprefix(".")] = mask
        return masks

    def _probe(self, run: Callable[[], Any], like: Tensor) -> dict[str, list[torch.Size]]:
        """The shapes of the masks that a computation uses. It may call a layer several times."""
        for layer in self.layers.values():
            layer.probe = []
        try:
            with torch.no_grad(), generators_restored(like):
                run()
            return {name: layer.probe for name, layer in self.layers.items() if layer.probe is not None}
        finally:
            for layer in self.layers.values():
                for call in range(len(layer.probe or ())):
                    layer.register_buffer(f"mask{call}", torch.ones(()), persistent=False)
                layer.probe = None


_DRAWN_ON_GPU = 2**20
"""The number of units from which on a GPU draws a mask itself. Drawing it on the CPU would delay training."""


def _kept(count: int, p: float, generators: Sequence[np.random.BitGenerator], device: torch.device) -> Tensor:
    """Which units are kept, one row per generator: True with probability ``1 − p``, rounded to 2⁻¹⁶.

    Small masks are drawn on the CPU, so that all devices agree, four units from each random word. Large masks on a GPU
    are drawn there, from a seed that the generator draws.
    """
    if device.type == "cuda" and count >= _DRAWN_ON_GPU:
        seeds = [int(bits.random_raw() >> np.uint64(1)) for bits in generators]
        gpu_generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        return torch.stack([torch.rand(count, generator=g, device=device) >= p for g in gpu_generators])
    keep = np.empty((len(generators), count), dtype=bool)
    for row, bits in zip(keep, generators, strict=True):
        words = bits.random_raw(-(-count // 4)).astype("<u8", copy=False)
        np.greater_equal(words.view("<u2")[:count], round(p * 2**16), out=row)
    return torch.from_numpy(keep).to(device)
