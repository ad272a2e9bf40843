"""Hypergradients of the head: the two losses as functions of its parameters, and the features that they need.

With ``scope="head"`` the problem is one over features. The body of the network is a constant, ``h = body(x)``, and the
losses are functions of the head's parameters w alone: ``L(w, φ) = inner_loss(head_w(h), φ)``.
"""

from __future__ import annotations

import itertools
from collections import deque
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.gradients.loss_derivatives import FullGradient, LossDerivatives, full_first_order, seeded
from calibrant.bilevel.problem.checks import generator_states
from calibrant.bilevel.problem.evaluation import join
from calibrant.data.streams.batch import Batch, Tensors, map_tensors, tensors_of
from calibrant.models.functional.network import SplitPureNetwork

if TYPE_CHECKING:
    from calibrant.bilevel.problem.bilevel import Bilevel
    from calibrant.bilevel.problem.population import Population
    from calibrant.bilevel.running.trainer import Trainer


class FeatureMemory:
    """The last ``size`` batches and their features, oldest first.

    Parameters
    ----------
    size : int
    axes : Batch, optional
        For a population: 0 for leaves of a batch with a leading axis over members, None for shared leaves.
    """

    def __init__(self, size: int, axes: Batch | None = None) -> None:
        self.size, self.axes = size, axes
        self.kept: deque[tuple[Batch, Tensor]] = deque(maxlen=size)
        self.allocated = 0
        """The number of entries so far that got their own tensors. A recorded step holds until it changes."""

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, batch: Batch, features: Tensor) -> None:
        """Add a batch. If the memory is full, the oldest one is dropped."""
        new = batch._replace(seed=None, noise={}), features
        if isinstance(batch.index, slice) and self.kept:
            self.kept = deque([self.kept[-1]], 1)  # each full batch contains all samples: only the newest one is needed
        forms = {tuple(leaf.shape for leaf in tensors_of(entry)) for entry in (*self.kept, new)}
        if len(self.kept) == self.kept.maxlen and len(forms) == 1:
            # All tensors are written in place, so that a recorded step repeats it in each replay.
            for entry, following in itertools.pairwise([*self.kept, new]):
                for old, fresh in zip(tensors_of(entry), tensors_of(following), strict=True):
                    old.copy_(fresh)
        else:  # the last batch of a loader is often smaller
            self.kept.append(map_tensors(torch.clone, new))
            self.allocated += 1

    def joined(self) -> tuple[Batch, Tensor]:
        """All batches as one, and their features."""
        batches, features = zip(*self.kept, strict=True)
        if len(batches) == 1:
            return batches[0], features[0]
        return join(batches, self.axes), torch.cat(features, 0 if self.axes is None else 1)

    def tensors(self) -> Tensors:
        """All kept tensors by name, for a checkpoint."""
        leaves = (tensors_of(entry) for entry in self.kept)
        return {f"{position}.{k}": leaf for position, entry in enumerate(leaves) for k, leaf in enumerate(entry)}

    def restore(self, tensors: Tensors, like: Batch) -> None:
        """Restore the result of :meth:`tensors`. ``like`` is a batch of the same stream."""
        form = like._replace(seed=None, noise={}), torch.empty(0)
        count = len(tensors) // len(tensors_of(form))
        supply = iter([tensors[f"{p}.{k}"] for p in range(count) for k in range(len(tensors_of(form)))])
        self.kept.extend(map_tensors(lambda _: next(supply), form) for _ in range(count))
        self.allocated += count


class BodyPass(NamedTuple):
    """The result of a pass through the body on a training batch: the features, and the buffers after it."""

    features: Tensor
    buffers: Tensors


class HeadLosses:
    """The losses of a problem with a constant body, or with a constant network.

    If there is a ``trainer``, it runs the body, and uses the same pass for the next training step.

    Parameters
    ----------
    problem : Bilevel or Population
    trainer : Trainer, optional
    batches : int
        The number of recent batches whose features are remembered.
    """

    def __init__(self, problem: Bilevel | Population, trainer: Trainer | None = None, batches: int = 0) -> None:
        self.problem, self.trainer = problem, trainer
        self.memory = FeatureMemory(batches, problem.axes)

    @cached_property
    def at(self) -> slice:
        """The slice of the parameter vector that holds the head's parameters."""
        return self.problem.template.head_slice

    @cached_property
    def at_if_known(self) -> slice:
        """The slice of the head's parameters; an empty one if the network's head cannot be found."""
        try:
            return self.at
        except ValueError:
            return slice(0, 0)

    def see(self, state: State, batch: Batch) -> BodyPass:
        """Run the body on a training batch."""
        if self.trainer is not None:
            return BodyPass(self.trainer.begin(state, batch), {})
        body_pass = self.problem.each_member("inner", partial(_body_pass, self.problem.template))
        with torch.no_grad(), seeded(batch.seed, state.params):
            return BodyPass(*body_pass(state.params, state.buffers, batch))

    def inner(self, state: State, features: Tensor) -> LossDerivatives:
        """The training loss as a function ``fn(w, {}, φ, batch)`` on known features."""
        of_head = self.problem.each_member("inner", partial(_inner_loss, self.problem.template))

        def loss(w: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
            return of_head(w, state.params, features, phi, batch), {}

        return LossDerivatives(loss, detaches=self.problem.template.detaches)

    def outer(self, state: State, w: Tensor, phi: Tensor, batch: Batch, seen: BodyPass | None = None) -> FullGradient:
        """First derivatives of the outer loss in w and φ. If w is empty, the whole network is a constant.

        The buffers are those of ``seen`` if it is given, and those of ``state`` otherwise.
        """

        def loss(w: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
            return self._outer(state, w, phi, batch, seen), {}

        with seeded(batch.seed, w):
            return full_first_order(loss, (), w, {}, phi, batch._replace(seed=None))

    def outer_value(self, state: State, phi: Tensor, batch: Batch) -> Tensor:
        """The outer loss."""
        with torch.no_grad(), seeded(batch.seed, phi):
            return self._outer(state, state.params[..., self.at_if_known], phi, batch._replace(seed=None), None)

    def _outer(self, state: State, w: Tensor, phi: Tensor, batch: Batch, seen: BodyPass | None) -> Tensor:
        one, params = self.problem.template, state.params
        if self.trainer is None:
            buffers = state.buffers if seen is None else seen.buffers
            return self.problem.each_member("outer", partial(_outer_loss, one))(w, params, buffers, phi, batch)
        if seen is None:
            self.trainer.load(state)
        net: Any = self.trainer.constant_network()
        if w.numel():
            net = _head_network(one, w, params, batch, body=net.features)
        return one.outer_value(net, phi, batch)


def _body_pass(one: Bilevel, params: Tensor, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
    net = one.view.bind(params, buffers, noise=batch.noise, autocast=one.autocast)
    return net.features(batch.inputs), net.buffers


def _inner_loss(one: Bilevel, w: Tensor, params: Tensor, features: Tensor, phi: Tensor, batch: Batch) -> Tensor:
    net = _head_network(one, w, params, batch, body=lambda _: features)
    with one.kernels.replaced():
        return one.inner_value(net, phi, batch)


def _outer_loss(one: Bilevel, w: Tensor, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> Tensor:
    net = one.view.bind(params, buffers, train=False, autocast=one.autocast)
    if w.numel():
        net = _head_network(one, w, params, batch, body=net.features)
    return one.outer_value(net, phi, batch)


def _head_network(one: Bilevel, w: Tensor, params: Tensor, batch: Batch, *, body: Any) -> SplitPureNetwork:
    """The network with w in its head, whose features come from ``body(inputs)``. Only training batches have noise."""
    named, masked = one.view.unflatten(params) | one.view.head_params(w), bool(batch.noise)
    return SplitPureNetwork(one.view, named, one.start_buffers, body=body, train=masked, noise=batch.noise)


NOT_OF_FEATURES = (
    "scope='head' needs an inner loss that uses the network once, through its features: call net.logits(batch.inputs), "
    "or net.features and net.head, on inputs that do not depend on φ. Neither the loss nor the head may draw random "
    "numbers. Otherwise use scope='all'."
)


def is_of_features(one: Bilevel) -> bool:
    """Whether the inner loss is a function of the head and of the features of the batch's inputs.

    It is not if it changes the inputs or uses the network several times, if it uses other outputs of the module than
    the logits, or if the loss or the head draws random numbers. The body may draw them, as attention with dropout does.
    """
    batch, phi, params, buffers = one.train_batch(0), one.initial_phi(), one.start, one.initial_buffers()
    w, inputs = params[one.head_slice], list[Any]()

    def given(asked: Any) -> Tensor:
        inputs.append(asked)
        return features

    with torch.no_grad(), seeded(batch.seed, params):
        try:
            features, _ = _body_pass(one, params, buffers, batch)
            random = generator_states(params)
            apart = one.inner_value(_head_network(one, w, params, batch, body=given), phi, batch)
        except (TypeError, ValueError, AttributeError, IndexError):
            return False
        if not all(map(torch.equal, random, generator_states(params))) or len(inputs) != 1:
            return False
    if any(a is not b for a, b in itertools.zip_longest(tensors_of(inputs[0]), tensors_of(batch.inputs))):
        return False
    with torch.no_grad(), seeded(batch.seed, params):
        whole = one.inner(params, buffers, phi, batch)[0]
    return torch.allclose(apart, whole, rtol=1e-4 if one.autocast is None else 0.05, equal_nan=True)
