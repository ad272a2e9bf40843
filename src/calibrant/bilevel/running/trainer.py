"""Training of a single network in place, at the speed of an ordinary loop.

The engine's states are values: a parameter vector, moments and buffers. Steps that are not differentiated need no pure
function. A :class:`Trainer` has a working copy of the module, whose parameters and gradients are views of two flat
vectors. So torch's own layers run (fused BatchNorm, statistics in place), the optimiser updates one vector in place,
and ``torch.compile`` sees an ordinary module. A state is copied in before a sequence of steps, and out after it.

The working copy also gives a hypergradient the features of its training batches, so that the body runs once for the
look-ahead step and the real step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from calibrant.bilevel.gradients.dynamics import Draws, Dynamics, Look, State
from calibrant.bilevel.gradients.loss_derivatives import LossDerivatives, seeded
from calibrant.bilevel.optimizers.base import Optimizer
from calibrant.bilevel.problem.checks import nodes
from calibrant.data.streams.batch import Batch, Tensors, map_tensors
from calibrant.models.functional.heads import Head, divide
from calibrant.models.functional.network import SplitNetwork, call, logits_of, owner_of
from calibrant.models.functional.pure_layers import MaskedDropout

if TYPE_CHECKING:
    from calibrant.bilevel.problem.bilevel import Bilevel


class Trainer(Dynamics):
    """Training as a map. A working copy of the network takes the steps that are not differentiated, in place.

    Parameters
    ----------
    problem : Bilevel
        A single problem, not a population.
    derivatives : LossDerivatives
        Those of the inner loss.
    optimizer : Optimizer
        The inner optimiser.
    compile : bool
        Run the module under ``torch.compile``.
    copies : bool
        Return states as copies, which later steps do not change. False saves their memory where no step is
        differentiated.
    """

    def __init__(
        self,
        problem: Bilevel,
        derivatives: LossDerivatives,
        optimizer: Optimizer,
        *,
        compile: bool = False,
        copies: bool = True,
    ) -> None:
        super().__init__(derivatives, optimizer)
        self.problem, self.compile = problem, compile
        view = problem.view
        self.module = view.working_copy()
        self.params = view.initial()
        self.grad = torch.zeros_like(self.params)
        self.moments = optimizer.init(self.params)
        parameters = dict(self.module.named_parameters())
        views, slopes = view.unflatten(self.params), view.unflatten(self.grad)
        for name in view.names:
            parameters[name].data, parameters[name].grad = views[name], slopes[name]
            parameters[name].requires_grad_()
        self.named = {name: parameters[name] for name in view.names}
        self._targets: list[Tensor] | None = list(self.named.values())
        """The loss is differentiated in these alone; None where torch's reentrant checkpointing does not allow that."""
        self._first = True
        self.dropouts = {k: m for k, m in self.module.named_modules() if isinstance(m, MaskedDropout) and m.p > 0}
        self._always_eval = [self.module.get_submodule(k) for k in view.always_eval]
        self._buffers = [(k, *owner_of(self.module, k)) for k in problem.start_buffers]
        self._parts: Head | None = None
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._last: State | None = None
        self._last_versions: list[int] = []
        self._copies = copies
        self._begun: tuple[State, Tensor] | None = None

    def train(
        self, state: State, phi: Tensor, draws: Draws, steps: int, look: Look | None = None
    ) -> tuple[State, list[Tensor]]:
        if not steps:
            return state, []
        features = self._take_begun(state)
        if features is None:
            self.load(state)
        self.forget()
        losses = []
        for step in range(state.step, state.step + steps):
            batch = draws(step)
            if look is not None:
                present = self.live(step)
                look(present, batch)
                features = self._take_begun(present)
            losses.append(self._step(phi, batch, step + 1, features))
            features = None
        after = state.step + steps
        return (self.hand_out(after) if self._copies else self.live(after)), losses

    def _step(self, phi: Tensor, batch: Batch, step: int, features: Tensor | None) -> Tensor:
        self._set_mode(train=True)
        net = WorkingNetwork(self, batch.noise)
        if features is not None:
            net = SplitWorkingNetwork(self, batch.noise, body=lambda _: features)
        with seeded(batch.seed, self.params), torch.enable_grad(), _plain_errors():
            loss = self.problem.inner_value(net, phi, batch._replace(seed=None))
        self.grad.zero_()
        if self._first:
            self._first, reentrant = False, any(node.name() == "CheckpointFunctionBackward" for node in nodes(loss))
            self._targets = None if reentrant else self._targets
        loss.backward(inputs=self._targets)
        with torch.no_grad():
            self.optimizer.step_(self.params, self.moments, self.optimizer.clip_(self.grad), step)
        return loss.detach()

    def begin(self, state: State, batch: Batch) -> Tensor:
        """Run the body on the next step's batch, keep the graph for that step, and return the features without it.

        Buffers are updated as in the step itself, so the outer loss can be evaluated before the step is finished.
        """
        self.load(state)
        self._set_mode(train=True)
        with seeded(batch.seed, self.params), torch.enable_grad():
            features = WorkingNetwork(self, batch.noise).features(batch.inputs)
        self._begun = state, features
        self._last = None  # the buffers have moved
        return features.detach()

    def _take_begun(self, state: State) -> Tensor | None:
        """The features of the next step's batch, if :meth:`begin` was called with this state."""
        begun, self._begun = self._begun, None
        return begun[1] if begun is not None and begun[0] is state else None

    def constant_network(self) -> WorkingNetwork:
        """The working copy in evaluation mode as a constant network, for the outer loss."""
        self._set_mode(train=False)
        return ConstantWorkingNetwork(self, {})

    def load(self, state: State) -> None:
        """Copy ``state`` into the working copy."""
        self._begun = None
        if state is self._last and _versions(state) == self._last_versions:
            return
        live = self.live().tensors()
        with torch.no_grad():
            for name, tensor in state.tensors().items():
                if tensor is not live[name]:  # a callback may replace some tensors of a live state
                    live[name].copy_(tensor)

    def forget(self) -> None:
        """The working copy is about to change, so no state that was handed out describes it any longer."""
        self._last = None

    def live(self, step: int = 0) -> State:
        """A state of the working copy's own tensors, which change as training continues."""
        buffers = {name: owner._buffers[leaf] for name, owner, leaf in self._buffers}
        return State(self.params, self.moments, buffers, step)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def in_place(self, optimizer: Optimizer) -> Iterator[None]:
        """Inside the block, train with ``optimizer`` and return live states instead of copies."""
        before, copies = self.optimizer, self._copies
        self.optimizer, self._copies = optimizer, False
        try:
            yield
        finally:
            self.optimizer, self._copies = before, copies

    def hand_out(self, step: int) -> State:
        """A copy of the working copy's state."""
        moments = tuple(m.clone() for m in self.moments)
        self._last = State(self.params.clone(), moments, self.read_buffers(), step)
        self._last_versions = _versions(self._last)
        return self._last

    def read_buffers(self) -> Tensors:
        """Copies of the module's buffers."""
        return {name: owner._buffers[leaf].clone() for name, owner, leaf in self._buffers}  # type: ignore[union-attr]

    def _set_mode(self, *, train: bool) -> None:
        if self.module.training != train:
            self.module.train(train)
            for layer in self._always_eval:
                layer.eval()
            for layer in self.parts.copies if self._parts is not None else ():
                layer.training = train

    @property
    def parts(self) -> Head:
        """The working copy's head and body."""
        if self._parts is None:
            self._parts = divide(self.module, self.problem.head.name)
        return self._parts

    def runner(self, part: str) -> Callable[..., Any]:
        """The module or its body as a callable, compiled if ``compile`` is True."""
        if part not in self._compiled:
            module: nn.Module = self.module if part == "module" else self.parts.body
            self._compiled[part] = torch.compile(module, dynamic=False) if self.compile else module
        return self._compiled[part]


def _versions(state: State) -> list[int]:
    """How often each tensor was changed in place: a callback may change a state that was handed out."""
    return [tensor._version for tensor in state.tensors().values()]


class WorkingNetwork:
    """The working copy with the interface of :class:`calibrant.models.Network`, for losses."""

    def __init__(self, trainer: Trainer, noise: Tensors) -> None:
        self.trainer, self.params = trainer, trainer.named
        for layer in trainer.dropouts.values():  # without nn.Module's own assignment, which takes ten times as long
            vars(layer).update(calls=0, masked=bool(noise))
        for name, mask in noise.items():
            owner, _, leaf = name.rpartition(".")
            vars(trainer.dropouts[owner])[leaf] = mask

    @property
    def buffers(self) -> Tensors:
        """The buffers after the last call."""
        return self.trainer.live().buffers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("module", args, kwargs)

    def logits(self, inputs: Any) -> Tensor:
        """The logits, one row per sample."""
        return logits_of(call(self, inputs, self.trainer.module))

    def features(self, inputs: Any) -> Tensor:
        """The input of the head."""
        body = self.trainer.parts.body
        return logits_of(call(lambda *a, **k: self._run("body", a, k), inputs, body))

    def head(self, features: Tensor) -> Tensor:
        """The logits for given features, in the parameters' precision."""
        return logits_of(self.trainer.parts.head(features))

    def _run(self, part: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        problem = self.trainer.problem
        run, args = self.trainer.runner(part), problem.view.laid_out(args)
        if problem.autocast is None:
            return run(*args, **kwargs)
        dtype = self.trainer.params.dtype
        with torch.autocast(self.trainer.params.device.type, dtype=problem.autocast):
            output = run(*args, **kwargs)
        return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, output)


class SplitWorkingNetwork(SplitNetwork, WorkingNetwork):
    """A :class:`WorkingNetwork` whose body and head run separately."""


class ConstantWorkingNetwork(WorkingNetwork):
    """A :class:`WorkingNetwork` whose body, or whole module, runs without a graph."""

    def _run(self, part: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.no_grad():
            return super()._run(part, args, kwargs)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Add advice to the error of torch's BatchNorm about a batch of one sample."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise ValueError(f"{error}. Use drop_last=True to leave out a last batch of one sample.") from error
        raise
