"""A level whose derivatives come from graphs that are traced once and then replayed.

Eager autograd builds a new graph in every step. :class:`TracedDerivatives` records the operations of a step and of its
second-order product once (``recorder.py``). It cuts the joint graph where the adjoint enters, simplifies both
halves, and from then on runs only the tensor operations; on a GPU, with one launch (``cuda_graphs.py``).
``compiler="inductor"`` also passes the halves to ``torch.compile``, which is faster but takes much longer to compile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from calibrant.base.warning import warn
from calibrant.bilevel.compiled import recorder as graph_functions
from calibrant.bilevel.compiled import simplify as passes
from calibrant.bilevel.compiled.cuda_graphs import Captured, recordable
from calibrant.bilevel.compiled.recorder import NotRecordable, OneHotByComparison, record
from calibrant.bilevel.gradients.loss_derivatives import (
    Adjoint,
    FullGradient,
    Gradient,
    LossDerivatives,
    LossFunction,
    first_order,
    full_first_order,
    seeded,
    tensor_bytes,
)
from calibrant.data.streams.batch import Batch, Tensors
from calibrant.models.functional.kernels import without_onednn

Compiler = Literal["trace", "inductor", "graphs"]

_READS_VALUES = (
    "A loss, or the network, reads values of tensors, so its operations cannot be recorded once for all steps. "
    "Indexing with a boolean mask, nonzero, .item() and conditions on tensors do so. Use torch.where, or compile=None."
)


class TracedDerivatives(LossDerivatives):
    """A :class:`LossDerivatives` that replays traced graphs.

    ``seconds`` is the time spent on tracing and compiling so far, and ``traced`` the number of graphs.
    """

    warn_after = 32
    """The number of graphs after which a warning says that many shapes were traced."""

    def __init__(
        self,
        fn: LossFunction,
        differentiable_buffers: Sequence[str] = (),
        compiler: Compiler = "trace",
        *,
        detaches: bool = False,
    ) -> None:
        super().__init__(fn, differentiable_buffers, detaches=detaches)
        if compiler not in ("trace", "inductor"):
            raise ValueError(f"compile must be None, 'trace' or 'inductor'; got {compiler!r}.")
        self.compiler = compiler
        self.seconds = 0.0
        self._cache: dict[Any, Any] = {}
        self._layout: _Layout | None = None
        self._recent: dict[str, tuple[_Layout, Any, Any]] = {}

    def gradient(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensors]:
        point = self._point(params, buffers, phi, batch)

        def build(example: list[Tensor]) -> Callable[..., Any]:
            def flat(*leaves: Tensor) -> tuple[Tensor, ...]:
                loss, grad, after = first_order(self.fn, *point.restore(leaves))
                return loss, grad, *(after[k] for k in buffers)

            return self._finish(trace(flat, example), params.device)

        run = self._cached("gradient", point, build)
        with torch.no_grad(), seeded(batch.seed, params):
            loss, grad, *after = run(*point.tensors)
        return loss, grad, dict(zip(buffers, after, strict=True))

    def gradients(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> FullGradient:
        point = self._point(params, buffers, phi, batch)

        def build(example: list[Tensor]) -> tuple[Callable[..., Any], list[str], bool]:
            traced: list[FullGradient] = []

            def flat(*leaves: Tensor) -> tuple[Tensor, ...]:
                traced.append(full_first_order(self.fn, self.differentiable_buffers, *point.restore(leaves)))
                return *traced[-1][:3], *traced[-1].buffers.values()

            run = self._finish(trace(flat, example), params.device)
            return run, list(traced[-1].buffers), traced[-1].reaches_network

        run, used, reaches_network = self._cached("gradients", point, build)
        with torch.no_grad(), seeded(batch.seed, params):
            loss, d_params, d_phi, *d_buffers = run(*point.tensors)
        return FullGradient(loss, d_params, d_phi, dict(zip(used, d_buffers, strict=True)), reaches_network)

    def _halves(self, point: _Point, params: Tensor, buffers: Tensors) -> tuple[Callable[..., Any], ...]:
        """Three functions: the step, the product with its transpose, and the part of that product for φ alone."""
        names = self.differentiable_buffers

        def build(example: list[Tensor]) -> tuple[Callable[..., Any], ...]:
            adjoints = [torch.zeros_like(params), *(torch.zeros_like(buffers[k]) for k in names)]

            def joint(*leaves: Tensor) -> tuple[Tensor | None, ...]:
                kept = LossDerivatives.linearize(self, *point.restore(leaves[: len(example)]))
                d_grad, *rest = leaves[len(example) :]
                back = kept.pull(d_grad, dict(zip(names, rest, strict=True)))
                after = (kept.buffers[k] for k in buffers)
                return kept.loss, kept.grad, *after, back.params, back.phi, *back.buffers.values()

            traced = trace(joint, [*example, *adjoints])
            halves = graph_functions.split(traced, len(adjoints), 2 + len(buffers))
            return tuple(self._finish(m, params.device) for m in halves)

        return self._cached("linearize", point, build)

    def linearize(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> Gradient:
        point, names = self._point(params, buffers, phi, batch), self.differentiable_buffers
        early, rest, phi_only = self._halves(point, params, buffers)
        with torch.no_grad(), seeded(batch.seed, params):
            outputs = early(*point.tensors)
        head = 2 + len(buffers)
        saved = outputs[head:]

        def pull(d_grad: Tensor, d_buffers: Tensors, *, params: bool = True, retain: bool = False) -> Adjoint:
            seeds = [d_grad, *(d_buffers.get(k, torch.zeros_like(buffers[k])) for k in names)]
            with torch.no_grad():
                if not params:
                    return Adjoint(None, phi_only(*saved, *seeds)[0], {})
                d_params, d_phi, *back = rest(*saved, *seeds)
            return Adjoint(d_params, d_phi, dict(zip(names, back, strict=True)) if d_buffers else {})

        return Gradient(outputs[0], outputs[1], dict(zip(buffers, outputs[2:head], strict=True)), pull)

    def measure(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> int:
        point = self._point(params, buffers, phi, batch)
        early, *_ = self._halves(point, params, buffers)
        with torch.no_grad(), seeded(batch.seed, params):
            return tensor_bytes(early(*point.tensors), beside=point.tensors)

    @property
    def traced(self) -> int:
        """The number of graphs that have been traced."""
        return len(self._cache)

    def _point(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> _Point:
        if self._layout is None or self._layout.batch is not batch:  # a full batch is the same object in every step
            self._layout = _Layout(batch)
        return _Point(self._layout, params, buffers, phi)

    def _cached(self, kind: str, point: _Point, build: Callable[[list[Tensor]], Any]) -> Any:
        recent = self._recent.get(kind)
        if recent is not None and recent[0] is point.layout and recent[1] == point.shapes:
            return recent[2]
        key = (kind, *point.key())
        built = self._cache.get(key)
        if built is None:
            if self.traced == self.warn_after:
                warn(f"{self.traced} different shapes were traced. Batches of one size (drop_last=True) avoid this.")
            begin = time.perf_counter()
            # Tracing runs the step and draws random numbers. The seed keeps them apart from those of the run.
            with torch.no_grad(), seeded(0, point.tensors[0]):
                built = self._cache[key] = build(point.tensors)
            self.seconds += time.perf_counter() - begin
        self._recent[kind] = (point.layout, point.shapes, built)
        return built

    def _finish(self, module: fx.GraphModule, device: torch.device) -> Callable[..., Any]:
        if self.compiler == "trace":
            replay = graph_functions.as_function(module)
            return Captured(replay) if recordable(module, device) else replay
        # Inductor's own random numbers depend on the graph, but a step and its replay must draw the same numbers.
        code = fx.GraphModule(module, module.graph)
        return self._timed(torch.compile(code, fullgraph=True, dynamic=False, options={"fallback_random": True}))

    def _timed(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Add the time of the first call, which compiles, to ``seconds``."""
        called = False

        def run(*tensors: Tensor) -> Any:
            nonlocal called
            if called:
                return compiled(*tensors)
            begin, called = time.perf_counter(), True
            result = compiled(*tensors)
            self.seconds += time.perf_counter() - begin
            return result

        return run


class _Layout:
    """The structure of a batch: which of its leaves are tensors, and which are constants."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        leaves, self.structure = pytree.tree_flatten(batch._replace(seed=None))
        self.constants = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.key = (str(self.structure), str(self.constants), *(_form(t) for t in self.tensors))

    def restore(self, tensors: Sequence[Tensor]) -> Batch:
        supply = iter(tensors)
        return pytree.tree_unflatten([next(supply) if c is None else c[0] for c in self.constants], self.structure)


class _Point:
    """All inputs of a loss as a flat list of tensors."""

    def __init__(self, layout: _Layout, params: Tensor, buffers: Tensors, phi: Tensor) -> None:
        self.layout, self.names = layout, tuple(buffers)
        self.tensors = [params, phi, *buffers.values(), *layout.tensors]
        self.shapes = params.shape, params.dtype, phi.shape

    def key(self) -> tuple[Any, ...]:
        params, phi = self.tensors[:2]
        return _form(params), _form(phi), self.names, self.layout.key

    def restore(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensors, Tensor, Batch]:
        params, phi, *rest = tensors
        buffers = dict(zip(self.names, rest, strict=False))
        return params, buffers, phi, self.layout.restore(rest[len(self.names) :])


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def trace(fn: Callable[..., Any], example: list[Tensor], *, quick: bool = True) -> fx.GraphModule:
    """The simplified graph of ``fn`` at the example's shapes. With ``quick=False``, ``make_fx`` records it."""
    # New tensors: views of one storage, or tensors that require a gradient, would leak into the trace.
    example = [t.detach().clone() for t in example]
    quick = quick and not any(t.is_cuda for t in example)
    with without_onednn():
        traced = _operations(fn, example, quick)
        if graph_functions.has_shapes_by_value(traced.graph):
            raise ValueError(_READS_VALUES)
        if not graph_functions.is_pure(traced.graph):
            # Functionalisation does not work with autograd, but the recorded graph no longer contains any.
            again = graph_functions.as_function(traced)
            traced = _operations(torch.func.functionalize(again, remove="mutations"), example, quick)
            if not graph_functions.is_pure(traced.graph):
                raise ValueError("The loss writes into its inputs in a way that cannot be traced. Use compile=None.")
    return passes.simplify(traced)


def _operations(fn: Callable[..., Any], example: list[Tensor], quick: bool) -> fx.GraphModule:
    with OneHotByComparison():
        if quick:
            with contextlib.suppress(NotRecordable):
                return record(fn, example)
        try:
            with _one_fake_mode():
                return make_fx(fn)(*example)
        except RuntimeError as error:
            if "data-dependent" not in str(error) and "Dynamic" not in type(error).__name__:
                raise
            raise ValueError(_READS_VALUES) from error


def _one_fake_mode() -> contextlib.AbstractContextManager[Any]:
    """A fake mode that ``make_fx`` finds and uses. Without it, ``make_fx`` makes one for every operation."""
    try:
        from torch._guards import TracingContext, tracing
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:  # private names may move; tracing is slower without them, but works
        return contextlib.nullcontext()
    return tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))
