"""CUDA graphs: a function with one launch, and whole outer steps of a single problem.

With small networks a GPU waits while Python launches hundreds of short kernels. A CUDA graph is recorded once, on its
own tensors, and then replayed with one launch. :class:`Captured` does this for a function: inputs are copied into the
recorded tensors and outputs are cloned, so callers notice only the speed.

:class:`Replay` records a whole outer step of a single problem: the training steps, the hypergradient and the move of φ.
This works because a :class:`~calibrant.bilevel.running.trainer.Trainer` keeps the state in fixed memory. Batches,
learning rates and step numbers are copied in; losses, φ and the state are copied out.

Recording freezes every decision that Python makes in a step, as tracing does. A step runs eagerly if it cannot be
recorded: if it waits for the GPU, draws random numbers on the CPU, or changes what the network holds in Python (its
numbers, or which tensors its buffers are).
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from calibrant.base.warning import warn
from calibrant.bilevel.gradients.hypergradients import HypergradientInput, HypergradientResult, Plain
from calibrant.bilevel.gradients.implicit import Implicit
from calibrant.bilevel.gradients.loss_derivatives import seeded
from calibrant.bilevel.optimizers.base import Linearization, Moments, Optimizer
from calibrant.bilevel.optimizers.sgd_and_adam import SGD, Adam, AdamW
from calibrant.bilevel.running.outer_step import StepOutcome, compute_outcome
from calibrant.bilevel.running.trainer import Trainer
from calibrant.data.streams.batch import Batch
from calibrant.data.streams.loaders import LoaderStream
from calibrant.models.functional.pure_layers import MaskedDropout

if TYPE_CHECKING:
    from calibrant.bilevel.running.run import Run


_WARM_UP = 2
"""Calls before recording. Libraries choose and load their kernels in these calls; a recording must not do so."""


def recordable(module: fx.GraphModule, device: torch.device) -> bool:
    """Whether a traced module can be recorded: it runs on a GPU and draws no random numbers."""
    if device.type != "cuda":
        return False
    operators = [node.target for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return not any(torch.Tag.nondeterministic_seeded in operator.tags for operator in operators)


class Captured:
    """A pure function of CUDA tensors of fixed shapes. It is recorded in the third call and replayed from then on.

    If recording fails, or with ``record=False``, every call runs ``fn`` itself.

    Parameters
    ----------
    pool : optional
        The memory of the recording, from ``torch.cuda.graph_pool_handle``. Recordings that are replayed one after
        another can share it.
    watch : bool
        Look for operations that wait for the GPU in the second call, and record nothing if there is one.
    """

    def __init__(
        self, fn: Callable[..., Sequence[Any]], *, record: bool = True, pool: Any = None, watch: bool = False
    ) -> None:
        self.fn, self.record, self.pool, self.watch = fn, record, pool, watch
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.outputs: list[Any] = []
        self.last_copied: list[tuple[Tensor, int]] = []

    @property
    def warming_up(self) -> bool:
        """Whether the next call is one of those before recording."""
        return self.record and self.calls < _WARM_UP

    def __call__(self, *tensors: Tensor) -> Sequence[Any]:
        self.calls += 1
        if self.graph is None:
            if self.record and self.watch and self.calls == _WARM_UP:
                return self._watched(tensors)
            if not (self.record and self.calls == _WARM_UP + 1 and self._record(tensors)):
                return self.fn(*tensors)
        for k, (graph_input, tensor) in enumerate(zip(self.inputs, tensors, strict=True)):
            last, version = self.last_copied[k]
            if tensor is not last or tensor._version != version:  # a full batch is the same tensor in every step
                graph_input.copy_(tensor)
                self.last_copied[k] = (tensor, tensor._version)
        assert self.graph is not None
        self.graph.replay()
        return [self._hand_out(output, tensors) for output in self.outputs]

    def _watched(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Call ``fn``, and do not record it later if it waits for the GPU."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                results = self.fn(*tensors)
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        self.record = not any("called a synchronizing" in str(message.message) for message in messages)
        return results

    def _record(self, tensors: Sequence[Tensor]) -> bool:
        self.inputs = [t.detach().clone() for t in tensors]
        self.last_copied = [(t, t._version) for t in tensors]
        graph = torch.cuda.CUDAGraph()
        device = self.inputs[0].device
        # Meanwhile a loader's threads may pin and copy the next batch. With the default mode that would be an error.
        how: dict[str, Any] = {"stream": _stream_of(device), "capture_error_mode": "thread_local"}
        try:
            with torch.cuda.device(device), torch.cuda.graph(graph, pool=self.pool, **how):
                self.outputs = list(self.fn(*self.inputs))
        except RuntimeError as error:
            warn(
                "A step could not be recorded as a CUDA graph, so it runs operation by operation, which is slower. "
                f"The error was: {str(error).splitlines()[0]}"
            )
            _leave_recording(device)
            self.inputs, self.outputs, self.last_copied = [], [], []
            return False
        self.graph = graph
        return True

    def _hand_out(self, output: Any, tensors: Sequence[Tensor]) -> Any:
        """A copy that the next replay does not change. For an output that is an input, the caller's own tensor."""
        if not isinstance(output, Tensor):
            return output
        for graph_input, tensor in zip(self.inputs, tensors, strict=True):
            if output is graph_input:
                return tensor
        return output.clone()


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """The stream for recordings on a GPU. torch's default is one stream, on the GPU of the first recording."""
    return torch.cuda.Stream(device)


def _leave_recording(device: torch.device) -> None:
    """Give the generator of a GPU a new state: after a failed recording it would still expect one, and raise."""
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())


class Clock(NamedTuple):
    """Step numbers and learning rates on the device.

    Entry 0 is the number of steps taken before this recording. Entry k is the learning rate of its step k.
    """

    numbers: Tensor

    def time(self, step: int) -> Tensor:
        """The number of a step since the beginning of the run, counted from 1."""
        return self.numbers[0] + step

    def rate(self, step: int) -> Tensor:
        """The learning rate of a step of this recording."""
        return self.numbers[step]


@dataclass(frozen=True)
class Timed(Optimizer):
    """An optimiser that reads its learning rate and step number from a clock."""

    learning_rate: Any = 0.0
    base: Optimizer = field(default=SGD(0.0), kw_only=True)
    clock: Clock | None = field(default=None, kw_only=True)

    def on(self, head_slice: slice) -> Timed:
        return _with(self, base=self.base.on(head_slice))

    @property
    def decay(self) -> float | Tensor:
        return self.base.decay

    def init(self, params: Tensor) -> Moments:
        return self.base.init(params)

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        return self._at(step).update(params, moments, grad, self._time(step))

    def update_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        self._at(step).update_(params, moments, grad, self._time(step))

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        timed = Linearization(at.params, at.moments, at.new_moments, at.grad, self._time(at.step))
        return self._at(at.step).pull(timed, d_params, d_moments)

    def stationary_decay(self) -> float | Tensor:
        return self.base.stationary_decay()

    def _at(self, step: int) -> Optimizer:
        assert self.clock is not None
        return _with(self.base, learning_rate=self.clock.rate(step))

    def _time(self, step: int) -> Any:
        assert self.clock is not None
        return self.clock.time(step)


def _with(optimizer: Any, **values: Any) -> Any:
    """A copy with other values. They are not checked, because reading a tensor on a GPU would wait for it."""
    twin = copy.copy(optimizer)
    for name, value in values.items():
        object.__setattr__(twin, name, value)
    return twin


def can_replay(run: Run, compile: str | None) -> bool:
    """Whether the outer steps of ``run`` can be recorded."""
    trainer, inner, outer = run.dynamics, run.dynamics.optimizer, run.outer_optimizer
    if not isinstance(trainer, Trainer) or not trainer.params.is_cuda:
        return False
    if type(inner) not in _KNOWN or inner.groups or run.restart:
        return False
    if compile == "graphs":
        return isinstance(run.hypergradient, Plain) and run.outer_steps >= LEAST_STEPS
    return (
        compile == "inductor"
        and type(run.hypergradient).__module__ in _OWN  # others may train several times from the first state
        and not run.problem.moves_start
        and not run.problem.stochastic
        and not (run.head.memory.size and isinstance(run.problem.train, LoaderStream))  # batches of several sizes
        and (outer is None or type(outer) in _KNOWN)
    )


_KNOWN = (SGD, Adam, AdamW)
_OWN = {hypergradient.__module__ for hypergradient in (Plain, Implicit)}
"""Where the hypergradients are that may be recorded, since they change a state in place only once."""
LEAST_STEPS = 20
"""The shortest run, in outer steps, that ``compile="graphs"`` records; shorter ones have little to save."""
RECORDINGS = 8
"""The most recordings of a run, one for each combination of shapes. Other steps run eagerly."""


class Replay:
    """The outer steps of a run, with one recording for each kind of step and each shape of the batches.

    The memory of features is written in place while all batches have one shape. A batch of another shape replaces
    tensors, and the steps after it are recorded again.

    ``record=False`` runs the same steps in the same fixed memory without recording them; it needs no GPU.
    """

    def __init__(self, run: Run, *, record: bool = True) -> None:
        self.run, self.record = run, record
        trainer = run.dynamics
        assert isinstance(trainer, Trainer)
        self.trainer = trainer
        self._pool = torch.cuda.graph_pool_handle() if record and not run.masks else None
        self.phi = run.phi.clone()
        self.moments = tuple(m.clone() for m in run.outer_moments)
        self._recorded: dict[Any, Captured] = {}
        self._last: Tensor | None = None

    def __call__(self) -> StepOutcome:
        """Take one outer step."""
        run, trainer = self.run, self.trainer
        hypergradient, taken = run.present, run.step * run.present.steps
        train = [run.train_batch(taken + k) for k in range(hypergradient.steps)]
        val = [run.problem.val_batch(run.step)] if hypergradient.moves else []
        leaves, structure = pytree.tree_flatten([batch._replace(seed=None) for batch in train + val])
        constants = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        memory = run.head.memory.allocated
        forms = tuple((t.shape, t.dtype) for t in tensors)
        key = (memory, hypergradient.moves, str(structure), str(constants), forms)
        if key not in self._recorded:
            # A recording writes to the tensors of the memory, so it is useless after one of them was replaced.
            self._recorded = {k: recorded for k, recorded in self._recorded.items() if k[0] == memory}
            step, record = _Step(self, structure, constants, hypergradient.steps), self.record
            record = record and len(self._recorded) < RECORDINGS
            self._recorded[key] = Captured(step, record=record, pool=self._pool, watch=not run.masks)
        if not run.deferred:
            trainer.load(run.state)
        trainer.forget()
        if run.phi is not self._last:
            self.phi.copy_(run.phi)
            for graph_moment, moment in zip(self.moments, run.outer_moments, strict=True):
                graph_moment.copy_(moment)
        inner, outer = self._numbers(taken, hypergradient.steps)
        recorded = self._recorded[key]
        with seeded(run.layer_seed(taken), trainer.params):
            before = _held_in_python(trainer.module) if recorded.warming_up and not run.masks else None
            results = recorded(inner, outer, *tensors)
            if before is not None and _differ(before, _held_in_python(trainer.module)):
                self.record = recorded.record = False
        return self._outcome(results, taken + hypergradient.steps, hypergradient.moves)

    def _numbers(self, taken: int, steps: int) -> tuple[Tensor, Tensor]:
        """The clocks of both levels, sent to the device without waiting for it."""
        run = self.run
        inner = [float(taken), *(float(run.dynamics.optimizer.learning_rate_at(taken + k + 1)) for k in range(steps))]
        outer = [0.0, 0.0]
        if run.outer_optimizer is not None:
            outer = [float(run.step), float(run.outer_optimizer.learning_rate_at(run.step + 1))]
        numbers = torch.tensor(inner + outer, dtype=torch.float64, device="cpu")
        if self.trainer.params.is_cuda:
            numbers = numbers.pin_memory().to(self.trainer.params.device, non_blocking=True)
        return numbers[: len(inner)], numbers[len(inner) :]

    def _outcome(self, results: Any, step: int, moves: bool) -> StepOutcome:
        inner_losses, loss, gradient, moved, ahead = results
        state = self.trainer.live(step)
        phi, moments = self.run.phi, self.run.outer_moments
        if moves:
            phi, moments = self.phi.clone(), tuple(m.clone() for m in self.moments)
        self._last = phi
        losses = list(inner_losses.unbind())
        seen = list(ahead.unbind()) if ahead is not None else []
        return StepOutcome(HypergradientResult(loss, gradient, seen, state), moved, phi, moments, state, losses)


def _held_in_python(module: nn.Module) -> dict[Any, Any]:
    """What a recording would freeze: numbers, texts, truth values and tensors that a module's layers hold, and draws.

    A buffer that is changed in place remains the same tensor. The state of the CPU's generator shows its draws.
    """
    held = {
        (name, key): value
        for name, layer in module.named_modules()
        if not isinstance(layer, MaskedDropout)
        for key, value in (vars(layer) | layer._buffers).items()
        if isinstance(value, bool | int | float | str | Tensor) and key != "training"
    }
    return held | {"drawn": torch.get_rng_state().numpy().tobytes()}


def _differ(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    """Whether a number is another one, or a tensor was replaced."""
    if before.keys() != after.keys():
        return True
    pairs = [(value, after[key]) for key, value in before.items()]
    return any(a is not b and (isinstance(a, Tensor) or isinstance(b, Tensor) or a != b) for a, b in pairs)


class _Step:
    """The function that is recorded: one outer step on tensors in fixed memory."""

    def __init__(self, replay: Replay, structure: Any, constants: list[Any], steps: int) -> None:
        self.replay, self.structure, self.constants, self.steps = replay, structure, constants, steps

    def __call__(self, inner: Tensor, outer: Tensor, *tensors: Tensor) -> list[Any]:
        replay, supply = self.replay, iter(tensors)
        leaves = [next(supply) if c is None else c[0] for c in self.constants]
        batches: list[Batch] = pytree.tree_unflatten(leaves, self.structure)
        run, trainer = replay.run, replay.trainer
        optimizer = run.dynamics.optimizer
        timed = Timed(base=optimizer, clock=Clock(inner), clip_norm=optimizer.clip_norm)
        mover = None if run.outer_optimizer is None else Timed(base=run.outer_optimizer, clock=Clock(outer))
        with trainer.in_place(timed):
            hypergradient_input = HypergradientInput(
                trainer,
                run.outer_derivatives,
                lambda step: batches[step],
                batches[self.steps] if len(batches) > self.steps else None,
                run.head,
            )
            outcome = compute_outcome(run, hypergradient_input, trainer.live(), replay.phi, replay.moments, mover, 0)
            trainer.load(outcome.state)
        with torch.no_grad():
            if run.present.moves:
                replay.phi.copy_(outcome.phi)
                for graph_moment, new in zip(replay.moments, outcome.moments, strict=True):
                    graph_moment.copy_(new)
            seen = outcome.result.inner_losses if run.present.lookahead else []
            return [
                torch.stack([loss.detach() for loss in outcome.inner_losses]),
                outcome.result.loss,
                outcome.result.gradient,
                outcome.gradient,
                torch.stack([loss.detach() for loss in seen]) if seen else None,
            ]
