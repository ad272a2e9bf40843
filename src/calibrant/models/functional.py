"""A module as a pure function of one flat parameter vector.

The engine differentiates *functions*. This file turns any ``nn.Module`` into one::

    output, buffers' = f(params, buffers, noise, inputs)

``params`` is a single vector of the trainable parameters (frozen ones stay constants), so that optimiser updates and
their adjoints are a handful of elementwise operations whatever the architecture. Two kinds of layer are made pure on
a private copy of the module, the user's own is never touched:

* BatchNorm returns its new running statistics instead of writing them, and they carry gradient: a loss that is taken
  in evaluation mode depends on the training trajectory through them, and an exact hypergradient must see that.
* Dropout multiplies by a mask that comes from outside, so that a backward sweep replays the very same network, and a
  vectorised run draws what a single run draws.

Any other random layer (``F.dropout``, stochastic depth, attention dropout) is replayed by seeding, see
:func:`calibrant.bilevel.level.seeded`.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant.data.batch import Tensors, map_tensors


class FunctionalModule:
    """A pure view of ``module``: ``view.bind(params, buffers)`` gives a network at a point of parameter space.

    Parameters
    ----------
    module : nn.Module
        Copied; later changes to it are not seen. Parameters with ``requires_grad=False`` are frozen: they keep their
        values and do not appear in the flat vector.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = _purify(copy.deepcopy(module))
        trainable = {k: p for k, p in self.module.named_parameters() if p.requires_grad}
        dtypes = {p.dtype for p in trainable.values()}
        if len(dtypes) > 1:
            raise ValueError(
                f"The trainable parameters have several dtypes ({', '.join(map(str, dtypes))}); "
                "convert the module to one, for example with module.float()."
            )
        self.names = list(trainable)
        self.shapes = [p.shape for p in trainable.values()]
        self.sizes = [p.numel() for p in trainable.values()]
        self.size = sum(self.sizes)
        self._initial = _flatten(trainable.values(), next(iter(self.module.buffers()), None))
        self._initial_buffers = {k: b.detach().clone() for k, b in self.module.named_buffers()}
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)
        self._dispatch = _Dispatch(self.module)
        if not self.module.training:
            self.module.eval()  # `set_mode` compares with the mode of the whole
        # Layers that the user put into evaluation mode inside a training module (a frozen BatchNorm) stay there.
        self._always_eval = [m for m in self.module.modules() if not m.training] if self.module.training else []
        self.dropouts = {k: m for k, m in self.module.named_modules() if isinstance(m, _MaskedDropout) and m.p > 0}
        self.differentiable_buffers = [
            f"{k}.{b}" if k else b
            for k, m in self.module.named_modules()
            if isinstance(m, _PureBatchNorm) and m.running_mean is not None
            for b in ("running_mean", "running_var")
        ]
        self._mask_shapes: dict[Any, dict[str, list[torch.Size]]] = {}

    def initial(self) -> Tensor:
        """The parameters that the module was given with, as one vector."""
        return self._initial.clone()

    def initial_buffers(self) -> Tensors:
        """The buffers that the module was given with."""
        return {k: b.clone() for k, b in self._initial_buffers.items()}

    def unflatten(self, params: Tensor) -> Tensors:
        """Named views into the flat vector."""
        parts = params.split(self.sizes, dim=-1)
        lead = params.shape[:-1]
        return {k: p.view(lead + s) for k, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of :meth:`unflatten`."""
        parts = [(tensors[k], len(s)) for k, s in zip(self.names, self.shapes, strict=True)]
        return torch.cat([t.reshape(*t.shape[: t.dim() - dims], -1) for t, dims in parts], dim=-1)

    def bind(
        self,
        params: Tensor,
        buffers: Tensors,
        *,
        train: bool = True,
        noise: Tensors | None = None,
        autocast: torch.dtype | None = None,
    ) -> Network:
        """The network at ``params``: call it like the module. ``autocast`` lowers the precision of its forward pass."""
        return Network(self, params, buffers, train, noise or {}, autocast)

    def run(self, values: Tensor, fn: Callable[..., Any], *args: Any) -> Any:
        """``fn(module, *args)`` with the module's parameters taken from the flat vector ``values``."""
        return functional_call(
            self._dispatch, {f"module.{k}": t for k, t in self.unflatten(values).items()}, (fn, *args)
        )

    def set_mode(self, train: bool) -> None:
        """Training or evaluation mode, but for the layers that were given in evaluation mode."""
        if self.module.training != train:
            self.module.train(train)
            for layer in self._always_eval:
                layer.eval()

    def export(self, params: Tensor, buffers: Tensors, into: nn.Module) -> nn.Module:
        """Write a point of parameter space into ``into`` (a module like the one this view was made of)."""
        with torch.no_grad():
            own = dict(into.named_parameters()) | dict(into.named_buffers())
            missing = (set(self.names) | set(buffers)) - set(own)
            if missing:
                raise ValueError(
                    f"The module to export into is of another kind: it has no {', '.join(sorted(missing))}."
                )
            for name, value in (self.unflatten(params) | buffers).items():
                own[name].copy_(value)
        return into

    def draw_noise(self, seed: int, *inputs: Any) -> Tensors:
        """Dropout masks for a forward pass on ``inputs``: a pure function of ``seed`` and the inputs' shapes."""
        if not self.dropouts:
            return {}
        key = tuple(x.shape for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor))
        if key not in self._mask_shapes:
            self._mask_shapes[key] = self._probe_masks(*inputs)
        generator = torch.Generator().manual_seed(seed)
        device, dtype = self._initial.device, self._initial.dtype
        masks = {}
        for name, shapes in self._mask_shapes[key].items():
            p = self.dropouts[name].p
            for call, shape in enumerate(shapes):
                keep = torch.rand(shape, generator=generator) >= p  # always on the CPU, so that devices agree
                masks[f"{name}.mask{call}".removeprefix(".")] = (keep.to(dtype) / (1 - p if p < 1 else 1)).to(device)
        return masks

    def _probe_masks(self, *inputs: Any) -> dict[str, list[torch.Size]]:
        """Which masks of which shapes a training pass on such inputs uses; a layer may be called several times."""
        for layer in self.dropouts.values():
            layer.probe = []
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=_cuda_devices(self._initial)):
                self.bind(self._initial, self.initial_buffers(), train=True)(*inputs)
            return {name: layer.probe for name, layer in self.dropouts.items() if layer.probe is not None}
        finally:
            for layer in self.dropouts.values():
                for call in range(len(layer.probe or ())):
                    layer.register_buffer(f"mask{call}", torch.ones(()), persistent=False)
                layer.probe = None


class Network:
    """A module at given parameters and buffers. ``buffers`` holds the newest buffers after each call."""

    def __init__(
        self,
        view: FunctionalModule,
        params: Tensor,
        buffers: Tensors,
        train: bool,
        noise: Tensors,
        autocast: torch.dtype | None,
    ) -> None:
        self.view, self.buffers, self.train, self.noise, self.autocast = view, buffers, train, noise, autocast
        self.params = view.unflatten(params)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        view = self.view
        view.set_mode(self.train)
        for layer in view.dropouts.values():
            layer.calls, layer.masked = 0, bool(self.noise)
        # Clones: a module that updates a buffer in place must not reach back into an earlier step's state.
        tensors = self.params | {k: b.clone() for k, b in self.buffers.items()} | self.noise
        swapped = {f"module.{k}": t for k, t in tensors.items()}
        call = (_call_and_read, args, kwargs, tuple(self.buffers))
        if self.autocast is None:
            output, buffers = functional_call(view._dispatch, swapped, call)
        else:
            device, dtype = view._initial.device.type, view._initial.dtype
            with torch.autocast(device, dtype=self.autocast):
                output, buffers = functional_call(view._dispatch, swapped, call)
            # Losses are taken in the parameters' own precision.
            output = map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, output)
        if self.train:
            self.buffers = buffers
        return output


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


_NOTHING = contextlib.nullcontext()


class _AttentionWatch(TorchDispatchMode):
    def __init__(self, kernels: FusedKernels) -> None:
        super().__init__()
        self.kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels.attention |= "_scaled_dot_product" in func.name()
        return func(*args, **(kwargs or {}))


class _Dispatch(nn.Module):
    """Lets ``functional_call`` run any function of a module, not only its ``forward``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.norms = [m for m in module.modules() if isinstance(m, _PureBatchNorm)]

    def forward(self, fn: Callable[..., Any], *args: Any) -> Any:
        for layer in self.norms:
            layer.fresh = {}
        return fn(self.module, *args)


def _call_and_read(module: nn.Module, args: tuple, kwargs: dict, names: tuple[str, ...]) -> tuple[Any, Tensors]:
    output = module(*args, **kwargs)
    if not names:
        return output, {}
    fresh = {k: b for k, b in module.named_buffers() if k in names}
    for prefix, layer in module.named_modules():
        if isinstance(layer, _PureBatchNorm):
            fresh |= {f"{prefix}.{k}" if prefix else k: v for k, v in layer.fresh.items()}
            layer.fresh = {}
    return output, fresh


class _PureBatchNorm(_BatchNorm):
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


class _MaskedDropout(nn.Module):
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
        mask = getattr(self, f"mask{self.calls}")
        self.calls += 1
        return x * mask


_CHANNEL_DIMS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def _purify(module: nn.Module) -> nn.Module:
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
            layer.__class__ = type(f"Pure{type(layer).__name__}", (_PureBatchNorm, type(layer)), {})
            layer.fresh = {}  # type: ignore[assignment]
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if name and type(layer) in _CHANNEL_DIMS:
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, _masked(layer))
    return module


def _masked(layer: nn.Module) -> nn.Module:
    assert isinstance(layer, _DropoutNd)
    return _MaskedDropout(layer.p, _CHANNEL_DIMS[type(layer)]).train(layer.training)


def _flatten(tensors: Any, like: Tensor | None) -> Tensor:
    parts = [t.detach().reshape(-1) for t in tensors]
    if parts:
        return torch.cat(parts)
    return torch.zeros(0, device=like.device if like is not None else None)


def _cuda_devices(tensor: Tensor) -> list[torch.device]:
    return [tensor.device] if tensor.is_cuda else []
