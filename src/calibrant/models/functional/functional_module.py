"""A module as a pure function of one flat parameter vector.

The engine differentiates functions. This file turns any ``nn.Module`` into one::

    output, buffers' = f(params, buffers, noise, inputs)

``params`` is one vector of all trainable parameters; frozen parameters are constants. So an optimiser's update and its
adjoint are a few elementwise operations for every architecture. BatchNorm and Dropout become pure
(:mod:`calibrant.models.functional.pure_layers`) in a private copy of the module. The user's own module does not change.

Other random layers (``F.dropout``, stochastic depth, attention dropout) are replayed by seeding, see
:func:`calibrant.bilevel.gradients.loss_derivatives.seeded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrant.data.streams.batch import Tensors, map_tensors, tensors_of
from calibrant.models.functional.global_state import generators_restored
from calibrant.models.functional.heads import Head, find_head
from calibrant.models.functional.network import Dispatch, Network
from calibrant.models.functional.pure_layers import DropoutMasks, MaskedDropout, PureNorm, purify
from calibrant.models.functional.user_modules import copied, layer_settings, reset_layers, resettable_copy


def _channels_last(tensor: Tensor) -> Tensor:
    """``(…, O, I, H, W)`` as ``(…, O, H, W, I)``."""
    return tensor.movedim(-3, -1)


def _channels_second(tensor: Tensor) -> Tensor:
    """The inverse of :func:`_channels_last`."""
    return tensor.movedim(-1, -3)


class FunctionalModule:
    """A pure view of ``module``: ``view.bind(params, buffers)`` is the network with these parameters.

    The flat vector holds the trainable parameters in the order of ``parameters``.

    Parameters
    ----------
    module : nn.Module
        It is copied, so later changes to it have no effect. Parameters with ``requires_grad=False`` are frozen: they
        keep their values and are not in the flat vector.
    channels_last : bool
        Store the kernels of 2-D convolutions with the channel as the last dimension, which is faster on GPUs. Only the
        order inside the vector changes, not the shapes of :meth:`unflatten`.
    """

    def __init__(self, module: nn.Module, *, channels_last: bool = False) -> None:
        self.description = layer_settings(module)
        self.parts: Head | None = None
        self.module = purify(copied(module))
        trainable = {k: p for k, p in self.module.named_parameters() if p.requires_grad}
        dtypes = {p.dtype for p in trainable.values()}
        if len(dtypes) > 1:
            raise ValueError(
                f"The trainable parameters must have one dtype; got several dtypes ({', '.join(map(str, dtypes))}). "
                "Convert the module, for example with module.float()."
            )
        self.channels_last = channels_last
        self.names = list(trainable)
        self.shapes = [p.shape for p in trainable.values()]
        self.sizes = [p.numel() for p in trainable.values()]
        self.size = sum(self.sizes)
        self._initial = self.vector(trainable.values(), next(iter(self.module.buffers()), None))
        self._initial_buffers = {k: b.detach().clone() for k, b in self.module.named_buffers()}
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)
        for name, values in self.unflatten(self._initial).items():
            trainable[name].data = values  # views of the vector, since a second copy would only take memory
        self._dispatch = Dispatch(self.module)
        if not self.module.training:
            self.module.eval()  # `set_mode` compares with the mode of the whole module
        # Layers in evaluation mode inside a module in training mode (a frozen BatchNorm) stay in evaluation mode.
        self.always_eval = [k for k, m in self.module.named_modules() if not m.training] if self.module.training else []
        self._always_eval = [self.module.get_submodule(k) for k in self.always_eval]
        self.dropouts = {k: m for k, m in self.module.named_modules() if isinstance(m, MaskedDropout) and m.p > 0}
        self.differentiable_buffers = [
            f"{k}.{b}" if k else b
            for k, m in self.module.named_modules()
            if isinstance(m, PureNorm) and m.running_mean is not None
            for b in ("running_mean", "running_var")
        ]
        self._masks = DropoutMasks(self.dropouts)
        self._scratch: nn.Module | None = None

    def unflatten(self, params: Tensor) -> Tensors:
        """Named views into the flat vector."""
        return self._named(params, range(len(self.names)))

    def _named(self, values: Tensor, positions: Sequence[int]) -> Tensors:
        """Some parameters by name, from a vector that holds them one after the other, with any leading axes."""
        parts, lead = values.split([self.sizes[k] for k in positions], dim=-1), values.shape[:-1]
        return {
            self.names[k]: self._shaped(part, lead, self.shapes[k]) for k, part in zip(positions, parts, strict=True)
        }

    def _shaped(self, values: Tensor, lead: torch.Size, shape: torch.Size) -> Tensor:
        """The part of a flat vector that holds one parameter, with its shape and the leading axes ``lead``."""
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

    def vector(self, tensors: Iterable[Tensor], like: Tensor | None = None) -> Tensor:
        """Parameters in the module's order as one vector. If there are none, the device is that of ``like``."""
        parts = [_channels_last(t.detach()) if self._moved(t.shape) else t.detach() for t in tensors]
        if parts:
            return torch.cat([t.reshape(-1) for t in parts])
        return torch.zeros(0, device=like.device if like is not None else "cpu")

    @property
    def values(self) -> Tensor:
        """The vector of :meth:`initial` without a copy. Do not write to it."""
        return self._initial

    def initial(self) -> Tensor:
        """The parameters of the given module, as one vector."""
        return self._initial.clone()

    def initial_buffers(self) -> Tensors:
        """The buffers of the given module."""
        return {k: b.clone() for k, b in self._initial_buffers.items()}

    def read(self, module: nn.Module) -> tuple[Tensor, Tensors]:
        """The parameters (as one vector) and buffers of another module of the same architecture.

        The same parameters must be frozen in both modules, with the same values.
        """
        parameters = dict(module.named_parameters())
        names = [k for k, p in parameters.items() if p.requires_grad]
        if (
            names != self.names
            or [parameters[k].shape for k in names] != self.shapes
            or layer_settings(module) != self.description
        ):
            raise ValueError(
                "The module must have the same architecture as the first one; got other trainable parameters or other "
                "settings of its layers."
            )
        if len(parameters) > len(names):
            for name, kept in self.module.named_parameters():
                if name not in self.names and not torch.equal(kept, parameters[name].to(kept)):
                    raise ValueError(
                        f"The frozen parameter {name} must have the values of the first module, since both share it; "
                        "got others."
                    )
        like = self._initial_buffers
        return (
            self.vector(parameters[k] for k in names).to(self._initial, copy=True),
            {k: b.detach().to(like[k], copy=True) for k, b in module.named_buffers()},
        )

    def draw(self, seed: int) -> Tensor:
        """Fresh parameters, drawn by the layers' own ``reset_parameters``: a pure function of ``seed``.

        Layers are drawn in the order in which they are built, on the CPU and in the default precision. So the result
        equals that of ``torch.manual_seed(seed)`` and building the module again, if all its parameters belong to layers
        with ``reset_parameters``.
        """
        if self._scratch is None:
            self._scratch = resettable_copy(self.module)
        reset_layers(self._scratch, seed)
        values = dict(self._scratch.named_parameters())
        return self.vector(values[k] for k in self.names).to(self._initial)

    def weight_mask(self) -> Tensor:
        """1 for entries of matrices and kernels, 0 for entries of biases, normalisation layers and embeddings."""
        kinds = (nn.Embedding, nn.EmbeddingBag)
        tables = {f"{name}.weight" for name, layer in self.module.named_modules() if isinstance(layer, kinds)}
        pairs = zip(self.names, self.shapes, strict=True)
        return self.spread({name: 1.0 for name, shape in pairs if len(shape) > 1 and name not in tables})

    def spread(self, values: dict[str, float]) -> Tensor:
        """A vector with a value for each entry, from one for each named parameter; 0 for parameters without a value."""
        pairs = zip(self.names, self.sizes, strict=True)
        parts = [self._initial.new_full((size,), values.get(name, 0.0)) for name, size in pairs]
        return torch.cat(parts) if parts else self._initial

    def locate(self, inputs: Any, name: str | None = None) -> Head:
        """Find the head by running the module on ``inputs``, or take the one called ``name``; see ``find_head``."""
        if self.parts is None or (name is not None and self.parts.name != name):
            with generators_restored(self._initial):
                self.parts = find_head(self.module, inputs, name)
            self._body, self._head = Dispatch(self.parts.body), Dispatch(self.parts.head)
        return self.parts

    @property
    def divided(self) -> Head:
        """The head and the body, after :meth:`locate` has found them."""
        if self.parts is None:
            raise ValueError("The head of this network is not known yet. Call view.locate(inputs) first.")
        return self.parts

    def head_params(self, values: Tensor) -> Tensors:
        """Named views into the head's slice of the flat vector."""
        return self._named(values, self._head_positions())

    def _head_positions(self) -> list[int]:
        return [position for position, name in enumerate(self.names) if self.divided.owns(name)]

    def head_slice(self) -> slice:
        """The slice of the flat vector that holds the head's trainable parameters."""
        positions = self._head_positions()
        if not positions:
            raise ValueError(
                f"The head must have trainable parameters; {self.divided.name!r} is frozen (requires_grad=False). "
                "Unfreeze it, or use scope='all'."
            )
        if positions != list(range(positions[0], positions[-1] + 1)):
            raise ValueError(
                f"The parameters of the head {self.divided.name!r} must be next to each other in the module's list of "
                "parameters. Register them together, or use scope='all'."
            )
        return slice(sum(self.sizes[: positions[0]]), sum(self.sizes[: positions[-1] + 1]))

    def bind(
        self,
        params: Tensor,
        buffers: Tensors,
        *,
        train: bool = True,
        noise: Tensors | None = None,
        autocast: torch.dtype | None = None,
    ) -> Network:
        """The network with ``params``, called like the module. ``autocast`` is the precision of its forward pass."""
        return Network(self, self.unflatten(params), buffers, train=train, noise=noise, autocast=autocast)

    def laid_out(self, inputs: Any) -> Any:
        """The inputs, with images in the memory order of the kernels."""
        if not self.channels_last:
            return inputs
        return map_tensors(
            lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t,
            inputs,
        )

    def working_copy(self) -> nn.Module:
        """A copy of the module for training in place, with torch's own BatchNorm. Dropout masks stay inputs."""
        twin = copied(self.module)
        for layer in twin.modules():
            if isinstance(layer, PureNorm):
                layer.__class__ = layer.original  # type: ignore[assignment]
        return twin

    def run(self, values: Tensor, fn: Callable[..., Any], *args: Any) -> Any:
        """``fn(module, *args)`` with the module's parameters taken from the flat vector ``values``."""
        if not self.names:
            return fn(self.module, *args)
        swapped = {f"module.{k}": t for k, t in self.unflatten(values).items()}
        return functional_call(self._dispatch, swapped, (_on_module, fn, *args))

    def set_mode(self, train: bool) -> None:
        """Set training or evaluation mode, except for layers that were given in evaluation mode."""
        if self.module.training != train:
            self.module.train(train)
            for layer in self._always_eval:
                layer.eval()
        if self.parts is not None:
            for layer in self.parts.copies:
                layer.training = train

    def export(self, params: Tensor, buffers: Tensors, into: nn.Module) -> nn.Module:
        """Write parameters and buffers into ``into``, a module with the architecture of this view."""
        with torch.no_grad():
            tensors = dict(into.named_parameters()) | dict(into.named_buffers())
            missing = (set(self.names) | set(buffers)) - set(tensors)
            if missing:
                raise ValueError(
                    "The module to export into must have the architecture of the trained one; got one without "
                    f"{', '.join(sorted(missing))}."
                )
            for name, value in (self.unflatten(params) | buffers).items():
                tensors[name].copy_(value)
        return into

    def draw_noise(
        self,
        seed: int | Sequence[int],
        *inputs: Any,
        evaluate: Callable[[Tensor, Tensors], Any] | None = None,
    ) -> Tensors:
        """Dropout masks for a forward pass on ``inputs``: a pure function of ``seed`` and the inputs' shapes.

        Parameters
        ----------
        seed : int or sequence of int
            Several seeds give masks with a leading axis.
        inputs : tensors
            The module's arguments.
        evaluate : callable ``(params, buffers)``, optional
            The computation that uses the masks, if it is not just ``module(*inputs)``: a loss that takes inputs apart,
            or calls the network several times.
        """
        if not self.dropouts:
            return {}

        def run() -> Any:
            point = self._initial, self.initial_buffers()
            return self.bind(*point, train=True)(*inputs) if evaluate is None else evaluate(*point)

        key = tuple(t.shape for t in tensors_of(inputs))
        return self._masks.draw(seed, key, run, self._initial)


def _on_module(part: Dispatch, fn: Callable[..., Any], *args: Any) -> Any:
    return fn(part.module, *args)
