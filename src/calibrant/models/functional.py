"""A module as a pure function of one flat parameter vector.

The engine differentiates *functions*. This file turns any ``nn.Module`` into one::

    output, buffers' = f(params, buffers, noise, inputs)

``params`` is a single vector of the trainable parameters (frozen ones stay constants), so that optimiser updates and
their adjoints are a handful of elementwise operations whatever the architecture. BatchNorm and Dropout are made pure
(:mod:`calibrant.models.pure_layers`) on a private copy of the module; the user's own is never touched.

Any other random layer (``F.dropout``, stochastic depth, attention dropout) is replayed by seeding, see
:func:`calibrant.bilevel.level.seeded`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from calibrant.data.batch import Tensors, map_tensors
from calibrant.models.pure_layers import MaskedDropout, PureNorm, purify


class FunctionalModule:
    """A pure view of ``module``: ``view.bind(params, buffers)`` gives a network at a point of parameter space.

    Parameters
    ----------
    module : nn.Module
        Copied; later changes to it are not seen. Parameters with ``requires_grad=False`` are frozen: they keep their
        values and do not appear in the flat vector.
    """

    def __init__(self, module: nn.Module) -> None:
        self.description = describe(module)
        self.module = purify(copy.deepcopy(module))
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
        self.dropouts = {k: m for k, m in self.module.named_modules() if isinstance(m, MaskedDropout) and m.p > 0}
        self.differentiable_buffers = [
            f"{k}.{b}" if k else b
            for k, m in self.module.named_modules()
            if isinstance(m, PureNorm) and m.running_mean is not None
            for b in ("running_mean", "running_var")
        ]
        self._mask_shapes: dict[Any, dict[str, list[torch.Size]]] = {}
        self._scratch: nn.Module | None = None

    def initial(self) -> Tensor:
        """The parameters that the module was given with, as one vector."""
        return self._initial.clone()

    def initial_buffers(self) -> Tensors:
        """The buffers that the module was given with."""
        return {k: b.clone() for k, b in self._initial_buffers.items()}

    def read(self, module: nn.Module) -> tuple[Tensor, Tensors]:
        """Parameters (one vector) and buffers of another module of the same architecture, as this view would take them.

        The module's parameters must be frozen where this view's are, and at the same values.
        """
        own = dict(module.named_parameters())
        names = [k for k, p in own.items() if p.requires_grad]
        if names != self.names or [own[k].shape for k in names] != self.shapes or describe(module) != self.description:
            raise ValueError(
                "The module is of another architecture than the one it is to stand in for: its trainable parameters or "
                "the settings of its layers differ."
            )
        if len(own) > len(names):
            for name, kept in self.module.named_parameters():
                if name not in self.names and not torch.equal(kept, own[name].to(kept)):
                    raise ValueError(f"The frozen parameter {name} has other values; frozen parameters are shared.")
        like = self._initial_buffers
        return (
            _flatten((own[k] for k in names), None).to(self._initial, copy=True),
            {k: b.detach().to(like[k], copy=True) for k, b in module.named_buffers()},
        )

    def draw(self, seed: int) -> Tensor:
        """Fresh parameters as the layers' own ``reset_parameters`` draw them: a pure function of ``seed``.

        Layers are drawn in the order in which they are built, on the CPU and in the default precision, so that this is
        ``torch.manual_seed(seed)`` followed by building the module again, if it leaves its parameters to its layers.
        """
        if self._scratch is None:
            scratch = copy.deepcopy(self.module).to("cpu", torch.get_default_dtype())
            for layer in _as_built(scratch):
                if any(p.numel() for p in layer.parameters(recurse=False)) and _reset(layer) is None:
                    raise ValueError(
                        f"{type(layer).__name__} has parameters of its own and no reset_parameters() to draw them "
                        "anew; give a module instead of a seed."
                    )
            self._scratch = scratch
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for layer in _as_built(self._scratch):
                if (reset := _reset(layer)) is not None:
                    reset()
        values = dict(self._scratch.named_parameters())
        return _flatten((values[k] for k in self.names), None).to(self._initial)

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

    def draw_noise(
        self,
        seed: int | Sequence[int],
        *inputs: Any,
        evaluate: Callable[[Tensor, Tensors], Any] | None = None,
        kind: object = None,
    ) -> Tensors:
        """Dropout masks for a forward pass on ``inputs``: a pure function of ``seed`` and the inputs' shapes.

        Several seeds give the masks of each, along a leading axis.

        ``evaluate(params, buffers)`` stands for a computation that is not just ``module(*inputs)``: a loss that takes
        inputs apart, or calls the network several times. Computations that differ have a ``kind`` each.
        """
        if not self.dropouts:
            return {}
        key = (kind, *(x.shape for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor)))
        if key not in self._mask_shapes:
            self._mask_shapes[key] = self._probe_masks(
                evaluate or (lambda params, buffers: self.bind(params, buffers, train=True)(*inputs))
            )
        generators = [np.random.SFC64(own) for own in ([seed] if isinstance(seed, int) else seed)]
        masks = {}
        for name, shapes in self._mask_shapes[key].items():
            p = self.dropouts[name].p
            for call, shape in enumerate(shapes):
                keep = _kept(shape.numel(), p, generators).to(self._initial.device)
                scale = self._initial.new_tensor(1 / (1 - p) if p < 1 else 1.0)
                mask = (keep * scale).view(shape if isinstance(seed, int) else (len(generators), *shape))
                masks[f"{name}.mask{call}".removeprefix(".")] = mask
        return masks

    def _probe_masks(self, evaluate: Callable[[Tensor, Tensors], Any]) -> dict[str, list[torch.Size]]:
        """Which masks of which shapes a computation uses; a layer may be called several times."""
        for layer in self.dropouts.values():
            layer.probe = []
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=_cuda_devices(self._initial)):
                evaluate(self._initial, self.initial_buffers())
            return {name: layer.probe for name, layer in self.dropouts.items() if layer.probe is not None}
        finally:
            for layer in self.dropouts.values():
                for call in range(len(layer.probe or ())):
                    layer.register_buffer(f"mask{call}", torch.ones(()), persistent=False)
                layer.probe = None


class Network:
    """A module at given parameters and buffers. ``buffers`` holds the newest buffers after each call.

    Several calls use the masks in ``noise`` one after the other.
    """

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
        self._masks_used: dict[str, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        view = self.view
        view.set_mode(self.train)
        for name, layer in view.dropouts.items():
            layer.calls, layer.masked = self._masks_used.get(name, 0), bool(self.noise)
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
        self._masks_used = {name: layer.calls for name, layer in view.dropouts.items()}
        if self.train:
            self.buffers = buffers
        return output


class _Dispatch(nn.Module):
    """Lets ``functional_call`` run any function of a module, not only its ``forward``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.norms = [m for m in module.modules() if isinstance(m, PureNorm)]

    def forward(self, fn: Callable[..., Any], *args: Any) -> Any:
        for layer in self.norms:
            layer.fresh = {}
        return fn(self.module, *args)


def _kept(count: int, p: float, generators: Sequence[np.random.BitGenerator]) -> Tensor:
    """Which units stay, one row a generator: True with probability ``1 − p``, to the next 2⁻¹⁶.

    Drawn on the CPU, so that devices agree, and four to a random word: masks are most of what a small network draws.
    """
    keep = np.empty((len(generators), count), dtype=bool)
    for row, bits in zip(keep, generators, strict=True):
        words = bits.random_raw(-(-count // 4)).astype("<u8", copy=False)
        np.greater_equal(words.view("<u2")[:count], round(p * 2**16), out=row)
    return torch.from_numpy(keep)


def describe(module: nn.Module) -> tuple[str, list[dict[str, str | int | float | None]]]:
    """The layers as they print, and the plain values that they keep as attributes and need not print."""
    return str(module), [
        {k: v for k, v in vars(layer).items() if not k.startswith("_") and isinstance(v, str | int | float | None)}
        | {"training": None}  # the mode is set anew for each pass
        for layer in module.modules()
    ]


def _as_built(module: nn.Module) -> Iterator[nn.Module]:
    """All layers, those inside a layer before it: a constructor builds its parts first."""
    for child in module.children():
        yield from _as_built(child)
    yield module


def _reset(layer: nn.Module) -> Callable[[], None] | None:
    """How a layer draws its parameters anew (attention's method has an underscore)."""
    return getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)


def _call_and_read(module: nn.Module, args: tuple, kwargs: dict, names: tuple[str, ...]) -> tuple[Any, Tensors]:
    output = module(*args, **kwargs)
    if not names:
        return output, {}
    fresh = {k: b for k, b in module.named_buffers() if k in names}
    for prefix, layer in module.named_modules():
        if isinstance(layer, PureNorm):
            fresh |= {f"{prefix}.{k}" if prefix else k: v for k, v in layer.fresh.items()}
            layer.fresh = {}
    return output, fresh


def _flatten(tensors: Any, like: Tensor | None) -> Tensor:
    parts = [t.detach().reshape(-1) for t in tensors]
    if parts:
        return torch.cat(parts)
    return torch.zeros(0, device=like.device if like is not None else None)


def _cuda_devices(tensor: Tensor) -> list[torch.device]:
    return [tensor.device] if tensor.is_cuda else []
