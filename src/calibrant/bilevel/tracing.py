"""The same derivatives from graphs that are traced once and then replayed.

Eager autograd rebuilds a graph for every step. :class:`TracedLevel` records the operations of a step *and* of its
second-order product once (``make_fx``), cuts the joint graph where the adjoint enters, simplifies both halves and from
then on runs bare tensor operations. ``compiler="inductor"`` hands the halves to ``torch.compile`` as well: faster still,
after tens of seconds of compiling.

Tracing specialises: Python values that the loss reads (attributes, globals) are frozen at their value of the first call, and
control flow that depends on tensor values is refused by torch with an error. Whatever varies belongs into the batch,
into φ or into ``Batch.hyper``. Each new shape is traced anew.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from calibrant.bilevel import graphs
from calibrant.data.batch import Batch, Tensors
from calibrant.bilevel.level import (
    Adjoint,
    FullGradient,
    Gradient,
    Level,
    LossFunction,
    first_order,
    full_first_order,
    seeded,
)

Compiler = Literal["trace", "inductor"]
_RETRACE_WARNING = 32


class TracedLevel(Level):
    """A :class:`Level` that replays traced graphs.

    ``seconds`` is the time spent on tracing and compiling so far.
    """

    def __init__(
        self, fn: LossFunction, differentiable_buffers: Sequence[str] = (), compiler: Compiler = "trace"
    ) -> None:
        super().__init__(fn, differentiable_buffers)
        if compiler not in ("trace", "inductor"):
            raise ValueError(f"compile must be None, 'trace' or 'inductor'; got {compiler!r}.")
        self.compiler = compiler
        self.seconds = 0.0
        self._cache: dict[Any, Any] = {}

    def gradient(
        self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensors]:
        (flat, spec), seed = _flatten(params, buffers, phi, batch)

        def build(example: list[Tensor]) -> Callable[..., Any]:
            return self._finish(_trace(lambda *leaves: first_order(self.fn, *spec(leaves)), example))

        with torch.no_grad(), seeded(seed, params):
            return self._cached("gradient", flat, spec, build)(*flat)

    def gradients(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> FullGradient:
        (flat, spec), seed = _flatten(params, buffers, phi, batch)
        names = self.differentiable_buffers

        def build(example: list[Tensor]) -> Callable[..., Any]:
            return self._finish(
                _trace(lambda *leaves: tuple(full_first_order(self.fn, names, *spec(leaves))), example)
            )

        with torch.no_grad(), seeded(seed, params):
            return FullGradient(*self._cached("gradients", flat, spec, build)(*flat))

    def linearize(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> Gradient:
        (flat, spec), seed = _flatten(params, buffers, phi, batch)
        names = self.differentiable_buffers

        def build(example: list[Tensor]) -> tuple[Callable[..., Any], ...]:
            adjoints = [torch.zeros_like(params), *(torch.zeros_like(buffers[k]) for k in names)]

            def joint(*leaves: Tensor) -> tuple[Any, ...]:
                point = leaves[: len(example)]
                kept = Level.linearize(self, *spec(point))
                d_grad, *rest = leaves[len(example) :]
                back = kept.pull(d_grad, dict(zip(names, rest, strict=True)))
                return (
                    kept.loss,
                    kept.grad,
                    *(kept.buffers[k] for k in buffers),
                    back.params,
                    back.phi,
                    *back.buffers.values(),
                )

            traced = _trace(joint, [*example, *adjoints])
            return tuple(self._finish(m) for m in graphs.split(traced, len(adjoints), 2 + len(buffers)))

        with torch.no_grad(), seeded(seed, params):
            early, rest, phi_only = self._cached("linearize", flat, spec, build)
            outputs = early(*flat)
        head = 2 + len(buffers)
        loss, grad, *after = outputs[:head]
        saved = list(outputs[head:])

        def pull(d_grad: Tensor, d_buffers: Tensors, *, params: bool = True, retain: bool = False) -> Adjoint:
            seeds = [d_grad, *(d_buffers.get(k, torch.zeros_like(buffers[k])) for k in names)]
            with torch.no_grad():
                if not params:
                    return Adjoint(None, phi_only(*saved, *seeds)[0], {})
                d_params, d_phi, *back = rest(*saved, *seeds)
            return Adjoint(d_params, d_phi, dict(zip(names, back, strict=True)) if d_buffers else {})

        def push(t_params: Tensor, t_phi: Tensor, t_buffers: Tensors) -> tuple[Tensor, Tensors]:
            return Level.linearize(self, params, buffers, phi, batch).push(t_params, t_phi, t_buffers)

        return Gradient(loss, grad, dict(zip(buffers, after, strict=True)), pull, push)

    def measure(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> int:
        return Level(self.fn, self.differentiable_buffers).measure(params, buffers, phi, batch)

    def _cached(
        self, kind: str, flat: list[Tensor], spec: _Spec, build: Callable[[list[Tensor]], Any]
    ) -> Any:
        key = (kind, spec.key, *((t.shape, t.dtype, t.device) for t in flat))
        if key not in self._cache:
            if len(self._cache) == _RETRACE_WARNING:
                warnings.warn(
                    f"{_RETRACE_WARNING} different shapes have been traced; batches of one size (drop_last=True) avoid that.",
                    stacklevel=2,
                )
            begin = time.perf_counter()
            self._cache[key] = build(flat)
            self.seconds += time.perf_counter() - begin
        return self._cache[key]

    def _finish(self, module: fx.GraphModule) -> Callable[..., Any]:
        if self.compiler == "trace":
            return module
        return torch.compile(module, fullgraph=True, dynamic=False)


class _Spec:
    """How a flat list of tensors becomes ``(params, buffers, phi, batch)`` again; everything else is a constant."""

    def __init__(self, tree: Any) -> None:
        leaves, self.structure = pytree.tree_flatten(tree)
        self.is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self.constants = [None if t else leaf for leaf, t in zip(leaves, self.is_tensor, strict=True)]
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.key = (str(self.structure), str(self.constants))

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        supply = iter(tensors)
        leaves = [next(supply) if t else c for t, c in zip(self.is_tensor, self.constants, strict=True)]
        return pytree.tree_unflatten(leaves, self.structure)


def _flatten(
    params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch
) -> tuple[tuple[list[Tensor], _Spec], int | None]:
    spec = _Spec((params, buffers, phi, batch._replace(seed=None)))
    return (spec.tensors, spec), batch.seed


def _trace(fn: Callable[..., Any], example: list[Tensor]) -> fx.GraphModule:
    # Fresh tensors: views into one storage, or tensors that require grad, would leak into the trace.
    example = [t.detach().clone() for t in example]
    traced = make_fx(fn)(*example)
    if not graphs.is_pure(traced.graph):
        traced = make_fx(torch.func.functionalize(fn, remove="mutations"))(*example)
        if not graphs.is_pure(traced.graph):
            raise ValueError(
                "The loss writes into its inputs in a way that cannot be traced; use compile=None."
            )
    return graphs.simplify(traced)
