"""Hypergradients of the head: losses as functions of its parameters, and the features that they need."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.gradients.loss_derivatives import LossDerivatives, seeded
from calibrant.bilevel.problem.checks import generator_states
from calibrant.data.streams.batch import Batch, Tensors, map_tensors, tensors_of
from calibrant.models.functional.functional_module import FunctionalModule
from calibrant.models.functional.heads import Head
from calibrant.models.functional.kernels import FusedKernels
from calibrant.models.functional.network import RecordingNetwork, SplitPureNetwork

if TYPE_CHECKING:
    from calibrant.bilevel.compiled import Trainer
    from calibrant.bilevel.problem.bilevel import Bilevel
    from calibrant.bilevel.problem.population import Population


class FeatureMemory:
    """The last ``size`` batches and their features, oldest first.

    Parameters
    ----------
    size : int
    axes : Batch, optional
        For a population: 0 for leaves of a batch with a leading axis over members, None for shared leaves.
    """

    def __init__(self, size: int, axes: Batch | None = None) -> None:
        self.axes = axes
        self.kept: deque[tuple[Batch, list[Tensor]]] = deque(maxlen=size)
        self.allocated = 0
        """The number of entries so far that got their own tensors. A recorded step holds until it changes."""

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, batch: Batch, features: Sequence[Tensor]) -> None:
        """Add a batch. If the memory is full, the oldest one is dropped."""
        batch = batch._replace(seed=None)
        full = len(self.kept) == (1 if isinstance(batch.index, slice) else self.kept.maxlen)
        if full and self._same_forms(batch, features):
            self._shift()
            self._write(batch, features)
        else:
            if isinstance(batch.index, slice):
                self.kept.clear()  # each full batch contains all samples, so only the newest features are needed
            self.kept.append(map_tensors(torch.clone, (batch, list(features))))
            self.allocated += 1

    def _same_forms(self, batch: Batch, features: Sequence[Tensor]) -> bool:
        """Whether all entries have the shapes of the given one. The last batch of a loader is often smaller."""
        forms = [[t.shape for t in (*_leaves(one), *kept)] for one, kept in (*self.kept, (batch, features))]
        return all(form == forms[0] for form in forms)

    def _shift(self) -> None:
        """Move every entry one place to the front, in place, so that a recorded step repeats it in each replay."""
        entries = [[*_leaves(batch), *features] for batch, features in self.kept]
        for entry, following in itertools.pairwise(entries):
            for kept, new in zip(entry, following, strict=True):
                kept.copy_(new)

    def _write(self, batch: Batch, features: Sequence[Tensor]) -> None:
        last_batch, last_features = self.kept[-1]
        for old, new in zip([*_leaves(last_batch), *last_features], [*_leaves(batch), *features], strict=True):
            old.copy_(new)

    def joined(self) -> tuple[Batch, list[Tensor]]:
        """All batches as one, and their features."""
        batches, features = zip(*self.kept, strict=True)
        if len(batches) == 1:
            return batches[0], features[0]
        return join(batches, self.axes), join_answers(features, self.axes is not None)

    def tensors(self) -> Tensors:
        """All kept tensors by name, for a checkpoint."""
        return {
            f"{position}.{kind}{number}": leaf
            for position, (batch, features) in enumerate(self.kept)
            for kind, leaves in (("batch", _leaves(batch)), ("features", features))
            for number, leaf in enumerate(leaves)
        }

    def restore(self, tensors: Tensors, like: Batch) -> None:
        """Restore the result of :meth:`tensors`. ``like`` is a batch of the same stream."""
        self.kept.clear()
        positions = sorted({int(name.partition(".")[0]) for name in tensors})
        for position in positions:
            batch = _with_leaves(like, _numbered(tensors, f"{position}.batch"))
            self.kept.append((batch, list(_numbered(tensors, f"{position}.features"))))
        self.allocated += len(positions)


def join(batches: Sequence[Batch], axes: Batch | None = None) -> Batch:
    """Several batches as one, without their dropout masks. ``axes`` are those of a population's stream.

    Inputs that differ in more than the number of samples, such as sentences padded batch by batch, become None. A loss
    of the head does not need them, because it gets the features.
    """

    def cat(name: str) -> Any:
        parts = [getattr(batch, name) for batch in batches]
        if parts[0] is None or (name == "inputs" and axes is None and not _of_one_shape(parts)):
            return None
        shift = 0 if axes is None else 1
        along = pytree.tree_map(lambda _: 0, parts[0]) if axes is None else getattr(axes, name)
        return pytree.tree_map(
            lambda axis, *leaves: torch.cat(leaves, 0 if axis is None else axis + shift), along, *parts
        )

    joined = {name: cat(name) for name in ("inputs", "targets", "index", "sample_weight")}
    return batches[0]._replace(noise={}, seed=None, **joined)


def _of_one_shape(parts: Sequence[Any]) -> bool:
    """Whether the tensors of all parts have the same shape except for the number of samples."""
    return len({tuple(t.shape[1:] for t in tensors_of(part)) for part in parts}) == 1


def join_answers(answers: Sequence[Sequence[Any]], population: bool) -> list[Any]:
    """Join a network's outputs on several batches, call by call, to its outputs on all of them."""
    dim = 1 if population else 0
    return [
        pytree.tree_map(lambda *parts: torch.cat(parts, dim) if isinstance(parts[0], Tensor) else parts[0], *calls)
        for calls in zip(*answers, strict=True)
    ]


def _leaves(batch: Batch) -> list[Tensor]:
    return tensors_of(batch._replace(seed=None))


def _with_leaves(like: Batch, tensors: Iterator[Tensor]) -> Batch:
    return pytree.tree_map(lambda leaf: next(tensors) if isinstance(leaf, Tensor) else leaf, like._replace(seed=None))


def _numbered(tensors: Tensors, prefix: str) -> Iterator[Tensor]:
    count = sum(name.startswith(prefix) for name in tensors)
    return iter([tensors[f"{prefix}{k}"] for k in range(count)])


class SplitLosses(ABC):
    """The part of :class:`calibrant.bilevel.Bilevel` that runs the body and the head of the network separately."""

    view: FunctionalModule
    start: Tensor
    start_buffers: Tensors
    stochastic: bool
    autocast: torch.dtype | None
    outer_mode: str
    _head_name: str | None
    _kernels: FusedKernels

    @abstractmethod
    def inner(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """L(θ, φ) on a batch."""

    @abstractmethod
    def inner_value(self, net: Any, phi: Tensor, batch: Batch) -> Tensor:
        """L on a batch, with any object that has the network's interface."""

    @abstractmethod
    def outer_value(self, net: Any, phi: Tensor, batch: Batch) -> Tensor:
        """F on a batch, with any object that has the network's interface."""

    @abstractmethod
    def train_batch(self, step: int) -> Batch:
        """The batch of an inner step."""

    @abstractmethod
    def initial_phi(self) -> Tensor:
        """φ before the first outer step."""

    @abstractmethod
    def initial_buffers(self) -> Tensors:
        """The module's buffers before training."""

    @property
    def head(self) -> Head:
        """The layer that computes the logits, and the body before it. If it is unclear, an error lists candidates."""
        if self.view.parts is None:
            self.view.locate(self.train_batch(0).inputs, self._head_name)
        return self.view.divided

    @property
    def head_slice(self) -> slice:
        """The slice of the parameter vector that holds the head's parameters."""
        _ = self.head
        return self.view.head_slice()

    @cached_property
    def separable(self) -> bool:
        """Whether the inner loss uses the network through features that do not depend on φ.

        Then the loss is a function of the head and these features. It is not if φ changes the inputs, if the loss uses
        other outputs of the module than the logits, or if the loss or the head draws random numbers. The body may draw
        them, as attention with dropout does.
        """
        _ = self.head
        batch, phi = self.train_batch(0), self.initial_phi().requires_grad_()
        params, buffers = self.start, self.initial_buffers()
        try:
            with torch.enable_grad(), seeded(batch.seed, params):
                features, _ = self.inner_features(params, buffers, phi, batch)
                random = generator_states(params)
                apart = self.inner_of_head(params[self.head_slice], params, features, phi.detach(), batch)
                if not all(map(torch.equal, random, generator_states(params))):
                    return False
        except (TypeError, ValueError, AttributeError, IndexError, StopIteration):
            return False
        with torch.no_grad(), seeded(batch.seed, params):
            whole = self.inner(params, buffers, phi.detach(), batch)[0]
        near = torch.allclose(apart.detach(), whole, rtol=1e-4 if self.autocast is None else 0.05, equal_nan=True)
        return near and not any(h.requires_grad for h in features)

    def inner_features(
        self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch
    ) -> tuple[list[Tensor], Tensors]:
        """The features that the inner loss uses, and the buffers after the pass."""
        net = self._divided(params, buffers, batch, train=True)
        self.inner_value(net, phi, batch)
        return net.kept, net.buffers

    def outer_features(
        self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch
    ) -> tuple[list[Tensor], Tensors]:
        """The features that the outer loss uses, and the buffers after the pass."""
        net = self._divided(params, buffers, batch, train=self.outer_mode == "train")
        self.outer_value(net, phi, batch)
        return net.kept, net.buffers

    def outer_answers(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> list[Any]:
        """The network's outputs when the outer loss is evaluated on ``batch``."""
        net = self._answering(params, buffers, batch)
        self.outer_value(net, phi, batch)
        return net.answers

    def outer_given(
        self, answers: Sequence[Any], params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch
    ) -> Tensor:
        """F on a batch from known outputs of the network."""
        return self.outer_value(self._answering(params, buffers, batch, answers=answers), phi, batch)

    def _answering(self, params: Tensor, buffers: Tensors, batch: Batch, **settings: Any) -> RecordingNetwork:
        train = self.outer_mode == "train"
        settings |= {"train": train, "noise": batch.noise, "autocast": self.autocast}
        return RecordingNetwork(self.view, self.view.unflatten(params), buffers, **settings)

    def inner_of_head(self, w: Tensor, params: Tensor, features: Sequence[Tensor], phi: Tensor, batch: Batch) -> Tensor:
        """L as a function of the head's parameters ``w``, with given features and everything else constant."""
        with self._kernels.replaced():
            return self.inner_value(self._of_head(w, params, features, batch, train=bool(batch.noise)), phi, batch)

    def outer_of_head(self, w: Tensor, params: Tensor, features: Sequence[Tensor], phi: Tensor, batch: Batch) -> Tensor:
        """F as a function of the head's parameters ``w``, with given features and everything else constant."""
        train = self.outer_mode == "train" and bool(batch.noise)
        return self.outer_value(self._of_head(w, params, features, batch, train=train), phi, batch)

    def _divided(self, params: Tensor, buffers: Tensors, batch: Batch, *, train: bool) -> SplitPureNetwork:
        _ = self.head
        settings: dict[str, Any] = {"train": train, "noise": batch.noise, "autocast": self.autocast}
        return SplitPureNetwork(self.view, self.view.unflatten(params), buffers, **settings)

    def _of_head(
        self, w: Tensor, params: Tensor, features: Sequence[Tensor], batch: Batch, *, train: bool
    ) -> SplitPureNetwork:
        named = self.view.unflatten(params) | self.view.head_params(w)
        return SplitPureNetwork(self.view, named, self.start_buffers, features=features, train=train, noise=batch.noise)


class BodyPass(NamedTuple):
    """The result of a pass through the body: the features of each call of the network, and the buffers after it."""

    features: list[Tensor]
    buffers: Tensors


class HeadDerivatives:
    """The losses of a problem as functions of the head's parameters ``w``.

    For known features ``h``, ``L(w, φ) = inner_loss(head_w(h), φ)`` costs a small part of the network. If there is a
    ``trainer``, it runs the body and uses the same pass for the next training step.
    """

    def __init__(self, problem: Bilevel | Population, trainer: Trainer | None = None) -> None:
        self.problem, self.trainer = problem, trainer
        self.head_slice = problem.head_slice

    def see(self, state: State, phi: Tensor, batch: Batch) -> BodyPass:
        """The features of a training batch at ``state``."""
        if self.trainer is not None:
            return BodyPass(self.trainer.begin(state, phi, batch), {})
        with torch.no_grad(), seeded(batch.seed, state.params):
            return BodyPass(*self.problem.inner_features(state.params, state.buffers, phi, batch))

    def inner(self, state: State, features: Sequence[Tensor]) -> LossDerivatives:
        """The training loss as a level in ``w``, with ``fn(w, {}, φ, batch)``."""
        problem, params = self.problem, state.params

        def loss(w: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
            return problem.inner_of_head(w, params, tuple(features), phi, batch), {}

        return LossDerivatives(loss, detaches=problem.detaches)

    def outer(self, state: State, seen: BodyPass | None, phi: Tensor, batch: Batch) -> LossDerivatives:
        """The outer loss as a level in ``w``, with the buffers of ``seen`` if it is given, else those of ``state``."""
        problem, params = self.problem, state.params
        if self.trainer is not None:
            if seen is None:
                self.trainer.load(state)
            features = self.trainer.outer_features(phi, batch, problem.outer_mode == "train")
        else:
            buffers = state.buffers if seen is None else seen.buffers
            with torch.no_grad(), seeded(batch.seed, params):
                features, _ = problem.outer_features(params, buffers, phi, batch)
        kept = tuple(features)

        def loss(w: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
            return problem.outer_of_head(w, params, kept, phi, batch), {}

        return LossDerivatives(loss)
