"""The network that losses call: a module with given parameters, and its logits for the usual inputs and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrant.data.streams.batch import Tensors, map_tensors
from calibrant.data.streams.batch_formats import BatchFormat
from calibrant.models.functional.pure_layers import PureNorm

if TYPE_CHECKING:
    from calibrant.models.functional.functional_module import FunctionalModule


def logits_of(output: Any) -> Tensor:
    """The logits in a module's output: a tensor, ``(logits, …)``, a mapping with "logits" or an object with .logits."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    else:
        logits = output[0] if isinstance(output, list | tuple) and output else None
    if not isinstance(logits, Tensor):
        keys = f" with {', '.join(map(repr, output))}" if isinstance(output, Mapping) else ""
        raise ValueError(
            "A network must return logits: a tensor, (logits, …), a mapping with 'logits' or an object with .logits; "
            f"got {type(output).__name__}{keys}."
        )
    return logits


def call(module: Any, inputs: Any, forward: nn.Module | None = None) -> Any:
    """``module(inputs)``; a mapping whose keys are names of arguments is passed as ``module(**inputs)``.

    ``forward`` is the module whose signature is read, if ``module`` is a wrapper around it.
    """
    if isinstance(inputs, Mapping) and takes_by_name(forward or module, inputs):
        return module(**inputs)
    return module(inputs)


def accepted_names(module: nn.Module) -> frozenset[str] | None:
    """The argument names of a module's forward pass. None means that it accepts any name."""
    parameters = _parameters(module)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def positional_names(module: nn.Module) -> tuple[tuple[str, ...], int]:
    """The positional arguments of a module's forward pass, and how many of them have no default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in _parameters(module) if p.kind in kinds]
    return tuple(p.name for p in taken), sum(p.default is inspect.Parameter.empty for p in taken)


def batch_format(module: nn.Module, labels: str | None = None) -> BatchFormat:
    """How the items of a loader give the arguments of a module; ``labels`` is the name of the labels in a mapping."""
    return BatchFormat(labels, accepted_names(module), *positional_names(module))


def takes_by_name(module: nn.Module, names: Iterable[str]) -> bool:
    """Whether a module's forward pass has an argument for each of these names."""
    accepted = accepted_names(module)
    return accepted is None or all(name in accepted for name in names)


def _parameters(module: nn.Module) -> tuple[inspect.Parameter, ...]:
    """The parameters of a module's forward pass, read once for each class of modules."""
    forward = module.forward
    if not inspect.ismethod(forward):
        return tuple(inspect.signature(forward).parameters.values())
    first, *rest = _signature(forward.__func__)
    return (first, *rest) if first.kind is inspect.Parameter.VAR_POSITIONAL else tuple(rest)


@lru_cache(256)
def _signature(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function).parameters.values())


class Network:
    """A module with given parameters and buffers, as losses see it.

    ``net.logits(x)`` gives the logits, also if the module returns more than these. ``net.features(x)`` gives the input
    of the head, and ``net.head(h)`` the logits for given features. ``net(x)`` is the output of the module itself, and
    ``net.params`` holds the named parameters. ``net.buffers`` holds the buffers after the last call.

    Several calls use the masks in ``noise`` one after the other. With autocast the body runs in lower precision.
    Features are returned in the parameters' precision, and a separate head runs in that precision.
    """

    def __init__(
        self,
        view: FunctionalModule,
        params: Tensors,
        buffers: Tensors,
        *,
        train: bool = False,
        noise: Tensors | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.view, self.params, self.buffers, self.train = view, params, buffers, train
        self.noise, self.autocast = noise or {}, autocast
        self._masks_used: dict[str, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self.view._dispatch, "", self.view.laid_out(args), kwargs)

    def logits(self, inputs: Any) -> Tensor:
        """The logits, one row per sample. A mapping of argument names is passed as keyword arguments."""
        return logits_of(call(self, inputs, self.view.module))

    def features(self, inputs: Any) -> Tensor:
        """The input of the head."""
        parts = self.view.locate(inputs)
        return logits_of(call(self._run_body, inputs, parts.body))

    def head(self, features: Tensor) -> Tensor:
        """The logits for given features."""
        name = self.view.divided.name
        prefix = f"{name}." if name else ""
        return logits_of(self._run(self.view._head, prefix, (features,), {}, autocast=False))

    def _run_body(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self.view._body, "", self.view.laid_out(args), kwargs)

    def _run(
        self, part: Dispatch, prefix: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, autocast: bool = True
    ) -> Any:
        view = self.view
        view.set_mode(self.train)
        for name, layer in view.dropouts.items():
            layer.calls, layer.masked = self._masks_used.get(name, 0), bool(self.noise)
        # Clones, so that a module that updates a buffer in place does not change the state of an earlier step.
        part_buffers = {k: self.buffers[k] for k in self.buffers if k.startswith(prefix)}
        tensors = self.params | {k: b.clone() for k, b in part_buffers.items()} | self.noise
        swapped = {f"module.{k[len(prefix) :]}": t for k, t in tensors.items() if k.startswith(prefix)}
        swapped = {k: t for k, t in swapped.items() if k in part.tensor_names or part.has_mask(k)}
        names = tuple(k[len(prefix) :] for k in part_buffers)
        if self.autocast is None or not autocast:
            output, buffers = functional_call(part, swapped, (_call_and_read, args, kwargs, names))
        else:
            device, dtype = view._initial.device.type, view._initial.dtype
            with torch.autocast(device, dtype=self.autocast):
                output, buffers = functional_call(part, swapped, (_call_and_read, args, kwargs, names))
            # Losses are computed in the parameters' precision.
            output = map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, output)
        self._masks_used = {name: layer.calls for name, layer in view.dropouts.items()}
        if self.train:
            self.buffers = self.buffers | {prefix + k: b for k, b in buffers.items()}
        return output


class SplitNetwork:
    """A mixin for networks whose body and head run separately.

    Every call of the network, by whatever method, computes the features first: by ``body(inputs)``.
    """

    def __init__(self, *args: Any, body: Callable[[Any], Tensor], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.body = body

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.logits(kwargs if kwargs else args[0])

    def logits(self, inputs: Any) -> Tensor:
        """The logits, computed from the features."""
        return self.head(self.features(inputs))  # type: ignore[attr-defined]

    def features(self, inputs: Any) -> Tensor:
        """The input of the head."""
        return self.body(inputs)


class SplitPureNetwork(SplitNetwork, Network):
    """A :class:`Network` whose body and head run separately."""


class RecordingNetwork(Network):
    """A network that records its outputs, or returns the outputs ``answers`` in the order of the calls."""

    def __init__(self, *args: Any, answers: Iterable[Any] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.answers: list[Any] = []
        self._supplied = None if answers is None else iter(answers)

    def _run(self, *args: Any, **settings: Any) -> Any:
        if self._supplied is not None:
            return next(self._supplied)
        self.answers.append(super()._run(*args, **settings))
        return self.answers[-1]


class Dispatch(nn.Module):
    """Lets ``functional_call`` run any function of a module, not only its ``forward``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.norms = [(k, m) for k, m in module.named_modules() if isinstance(m, PureNorm)]
        self.owners = {k: owner_of(module, k) for k, _ in module.named_buffers()}
        tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        self.tensor_names = {f"module.{k}" for k, _ in tensors}
        self._layers = {f"module.{k}" for k, _ in module.named_modules(remove_duplicate=False)}

    def has_mask(self, name: str) -> bool:
        """Whether ``name`` is a mask of one of the module's dropout layers."""
        layer, _, leaf = name.rpartition(".")
        return leaf.startswith("mask") and (layer in self._layers or layer == "module")

    def forward(self, fn: Callable[..., Any], *args: Any) -> Any:
        for _, layer in self.norms:
            layer.fresh = {}
        return fn(self, *args)


def _call_and_read(part: Dispatch, args: tuple, kwargs: dict, names: tuple[str, ...]) -> tuple[Any, Tensors]:
    """Call a part of the module. Returns its output and its buffers after the call."""
    output = part.module(*args, **kwargs)
    fresh: Tensors = {}
    for name in names:
        if name in part.owners:
            owner, leaf = part.owners[name]
            fresh[name] = owner._buffers[leaf]  # type: ignore[assignment]
    for prefix, layer in part.norms:
        fresh |= {f"{prefix}.{k}" if prefix else k: v for k, v in layer.fresh.items()}
        layer.fresh = {}
    return output, fresh


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that owns a buffer, and the buffer's name in it."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
