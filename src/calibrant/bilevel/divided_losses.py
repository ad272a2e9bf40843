"""A problem's losses as functions of the features and of the head, for hypergradients of the head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel.checks import generator_states
from calibrant.bilevel.level import seeded
from calibrant.data.batch import Batch, Tensors
from calibrant.models.functional import FunctionalModule
from calibrant.models.heads import Head
from calibrant.models.kernels import FusedKernels
from calibrant.models.network import Answering, DividedNetwork


class DividedLosses(ABC):
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
    def stretch(self) -> slice:
        """The slice of the parameter vector that holds the head's parameters."""
        _ = self.head
        return self.view.stretch()

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
                apart = self.inner_of_head(params[self.stretch], params, features, phi.detach(), batch)
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
        return self.outer_value(self._answering(params, buffers, batch, given=answers), phi, batch)

    def _answering(self, params: Tensor, buffers: Tensors, batch: Batch, **settings: Any) -> Answering:
        train = self.outer_mode == "train"
        settings |= {"train": train, "noise": batch.noise, "autocast": self.autocast}
        return Answering(self.view, self.view.unflatten(params), buffers, **settings)

    def inner_of_head(self, w: Tensor, params: Tensor, features: Sequence[Tensor], phi: Tensor, batch: Batch) -> Tensor:
        """L as a function of the head's parameters ``w``, with given features and everything else constant."""
        with self._kernels.replaced():
            return self.inner_value(self._of_head(w, params, features, batch, train=bool(batch.noise)), phi, batch)

    def outer_of_head(self, w: Tensor, params: Tensor, features: Sequence[Tensor], phi: Tensor, batch: Batch) -> Tensor:
        """F as a function of the head's parameters ``w``, with given features and everything else constant."""
        train = self.outer_mode == "train" and bool(batch.noise)
        return self.outer_value(self._of_head(w, params, features, batch, train=train), phi, batch)

    def _divided(self, params: Tensor, buffers: Tensors, batch: Batch, *, train: bool) -> DividedNetwork:
        _ = self.head
        settings: dict[str, Any] = {"train": train, "noise": batch.noise, "autocast": self.autocast}
        return DividedNetwork(self.view, self.view.unflatten(params), buffers, **settings)

    def _of_head(
        self, w: Tensor, params: Tensor, features: Sequence[Tensor], batch: Batch, *, train: bool
    ) -> DividedNetwork:
        named = self.view.unflatten(params) | self.view.head_params(w)
        return DividedNetwork(self.view, named, self.start_buffers, given=features, train=train, noise=batch.noise)
