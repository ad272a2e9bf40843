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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from calibrant.data.batch import Tensors, map_tensors
from calibrant.models.heads import Head, find_head
from calibrant.models.network import Dispatch, Network
from calibrant.models.pure_layers import MaskedDropout, PureNorm, purify


class FunctionalModule:
    """A pure view of ``module``: ``view.bind(params, buffers)`` gives a network at a point of parameter space.

    Parameters
    ----------
    module : nn.Module
        Copied; later changes to it are not seen. Parameters with ``requires_grad=False`` are frozen: they keep their
        values and do not appear in the flat vector.
    channels_last : bool
        Store the kernels of 2-D convolutions with the channel as the last dimension, which GPUs prefer. The shapes of
        :meth:`unflatten` stay what they are; only the order inside the vector changes.
    """

    def __init__(self, module: nn.Module, *, channels_last: bool = False) -> None:
        self.description = describe(module)
        self.channels_last = channels_last
        self.parts: Head | None = None
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
        self._initial = self._vector(trainable.values(), next(iter(self.module.buffers()), None))
        self._initial_buffers = {k: b.detach().clone() for k, b in self.module.named_buffers()}
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)
        for name, values in self.unflatten(self._initial).items():
            trainable[name].data = values  # the vector holds them; a second copy would only take memory
        self._dispatch = Dispatch(self.module)
        if not self.module.training:
            self.module.eval()  # `set_mode` compares with the mode of the whole
        # Layers that the user put into evaluation mode inside a training module (a frozen BatchNorm) stay there.
        self.always_eval = [k for k, m in self.module.named_modules() if not m.training] if self.module.training else []
        self._always_eval = [self.module.get_submodule(k) for k in self.always_eval]
        self.dropouts = {k: m for k, m in self.module.named_modules() if isinstance(m, MaskedDropout) and m.p > 0}
        self.differentiable_buffers = [
            f"{k}.{b}" if k else b
            for k, m in self.module.named_modules()
            if isinstance(m, PureNorm) and m.running_mean is not None
            for b in ("running_mean", "running_var")
        ]
        self._mask_shapes: dict[Any, dict[str, list[torch.Size]]] = {}
        self._scratch: nn.Module | None = None

    @property
    def values(self) -> Tensor:
        """The same vector without a copy: not to be written to."""
        return self._initial

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
            self._vector(own[k] for k in names).to(self._initial, copy=True),
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
        return self._vector(values[k] for k in self.names).to(self._initial)

    def unflatten(self, params: Tensor) -> Tensors:
        """Named views into the flat vector."""
        parts = params.split(self.sizes, dim=-1)
        lead = params.shape[:-1]
        return {k: self._shaped(p, lead, s) for k, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def _shaped(self, values: Tensor, lead: torch.Size, shape: torch.Size) -> Tensor:
        if self._moved(shape):
            return _channels_second(values.view(*lead, shape[0], *shape[2:], shape[1]))
        return values.view(lead + shape)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of :meth:`unflatten`."""
        parts = [(tensors[k], s) for k, s in zip(self.names, self.shapes, strict=True)]
        parts = [(_channels_last(t) if self._moved(s) else t, s) for t, s in parts]
        return torch.cat([t.reshape(*t.shape[: t.dim() - len(s)], -1) for t, s in parts], dim=-1)

    def _moved(self, shape: torch.Size) -> bool:
        """Whether a parameter of this shape is stored with its channels last."""
        return self.channels_last and len(shape) == 4

    def _vector(self, tensors: Iterable[Tensor], like: Tensor | None = None) -> Tensor:
        """Parameters in the order of the module as one vector; an empty one on the device of ``like``."""
        parts = [_channels_last(t.detach()) if self._moved(t.shape) else t.detach() for t in tensors]
        if parts:
            return torch.cat([t.reshape(-1) for t in parts])
        return torch.zeros(0, device=like.device if like is not None else None)

    def weight_mask(self) -> Tensor:
        """1 for the entries of matrices and kernels, 0 for those of biases and normalisation layers."""
        parts = [torch.full((n,), float(len(s) > 1)) for n, s in zip(self.sizes, self.shapes, strict=True)]
        return torch.cat(parts or [torch.zeros(0)]).to(self._initial)

    def locate(self, inputs: Any, name: str | None = None) -> Head:
        """Find the head by running the module on ``inputs``, or take the one that ``name`` names; see ``find_head``."""
        if self.parts is None or (name is not None and self.parts.name != name):
            with torch.random.fork_rng(devices=_cuda_devices(self._initial)):
                self.parts = find_head(self.module, inputs, name)
            self._body, self._head = Dispatch(self.parts.body), Dispatch(self.parts.head)
        return self.parts

    @property
    def divided(self) -> Head:
        """The head and the body, once :meth:`locate` has found them."""
        if self.parts is None:
            raise ValueError("The head of this network is not known yet: call view.locate(inputs) first.")
        return self.parts

    def head_params(self, values: Tensor) -> Tensors:
        """Named views into the head's stretch of the flat vector."""
        own = [k for k, name in enumerate(self.names) if self.divided.owns(name)]
        parts = values.split([self.sizes[k] for k in own], dim=-1)
        lead = values.shape[:-1]
        return {self.names[k]: self._shaped(part, lead, self.shapes[k]) for k, part in zip(own, parts, strict=True)}

    def stretch(self) -> slice:
        """Where the head's trainable parameters stand in the flat vector."""
        own = [position for position, name in enumerate(self.names) if self.divided.owns(name)]
        if not own:
            raise ValueError(
                f"The head {self.divided.name!r} is frozen (requires_grad=False), so nothing in it can move. Unfreeze "
                "it, or use scope='all'."
            )
        if own != list(range(own[0], own[-1] + 1)):
            raise ValueError(f"The parameters of the head {self.divided.name!r} do not stand together in the module.")
        return slice(sum(self.sizes[: own[0]]), sum(self.sizes[: own[-1] + 1]))

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
        return Network(self, self.unflatten(params), buffers, train=train, noise=noise, autocast=autocast)

    def laid_out(self, inputs: Any) -> Any:
        """Images in the memory order of the kernels; everything else as it is."""
        if not self.channels_last:
            return inputs
        return map_tensors(
            lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t,
            inputs,
        )

    def working_copy(self) -> nn.Module:
        """A copy of the module whose BatchNorm is torch's own again, for training in place; masks stay inputs."""
        twin = copy.deepcopy(self.module)
        for layer in twin.modules():
            if isinstance(layer, PureNorm):
                layer.__class__ = layer.original  # type: ignore[assignment]
        return twin

    def run(self, values: Tensor, fn: Callable[..., Any], *args: Any) -> Any:
        """``fn(module, *args)`` with the module's parameters taken from the flat vector ``values``."""
        swapped = {f"module.{k}": t for k, t in self.unflatten(values).items()}
        return functional_call(self._dispatch, swapped, (_on_module, fn, *args))

    def set_mode(self, train: bool) -> None:
        """Training or evaluation mode, but for the layers that were given in evaluation mode."""
        if self.module.training != train:
            self.module.train(train)
            for layer in self._always_eval:
                layer.eval()
        if self.parts is not None:
            for layer in self.parts.copies:
                layer.training = train

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
            for position, shape in enumerate(shapes):
                keep = _kept(shape.numel(), p, generators, self._initial.device)
                scale = self._initial.new_tensor(1 / (1 - p) if p < 1 else 1.0)
                mask = (keep * scale).view(shape if isinstance(seed, int) else (len(generators), *shape))
                masks[f"{name}.mask{position}".removeprefix(".")] = mask
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


_DRAWN_ON_GPU = 2**20
"""Units of one layer from which on a GPU draws its own mask: drawing more on the CPU would hold up training."""


def _kept(count: int, p: float, generators: Sequence[np.random.BitGenerator], device: torch.device) -> Tensor:
    """Which units stay, one row for each generator: True with probability ``1 − p``, to the next 2⁻¹⁶.

    Small masks are drawn on the CPU, so that devices agree, and four to a random word. Large ones on a GPU are drawn
    there, from a seed that the generator gives.
    """
    if device.type == "cuda" and count >= _DRAWN_ON_GPU:
        seeds = [int(bits.random_raw() >> np.uint64(1)) for bits in generators]
        own = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        return torch.stack([torch.rand(count, generator=g, device=device) >= p for g in own])
    keep = np.empty((len(generators), count), dtype=bool)
    for row, bits in zip(keep, generators, strict=True):
        words = bits.random_raw(-(-count // 4)).astype("<u8", copy=False)
        np.greater_equal(words.view("<u2")[:count], round(p * 2**16), out=row)
    return torch.from_numpy(keep).to(device)


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


def _channels_last(tensor: Tensor) -> Tensor:
    """``(…, O, I, H, W)`` as ``(…, O, H, W, I)``."""
    return tensor.movedim(-3, -1)


def _channels_second(tensor: Tensor) -> Tensor:
    """The inverse of :func:`_channels_last`."""
    return tensor.movedim(-1, -3)


def _cuda_devices(tensor: Tensor) -> list[torch.device]:
    return [tensor.device] if tensor.is_cuda else []


def _on_module(part: Dispatch, fn: Callable[..., Any], *args: Any) -> Any:
    return fn(part.module, *args)
