"""A bilevel problem: a model, outer variables, two losses and two streams of data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.bilevel.objectives import DEFAULT_INNER_LOSS, DEFAULT_OUTER_LOSS, UserLoss
from calibrant.bilevel.outer_variables import OuterVariable
from calibrant.data.batch import Batch, Tensors, map_tensors
from calibrant.data.streams import Stream, TensorStream, as_stream, mix
from calibrant.models.functional import FunctionalModule
from calibrant.models.kernels import FusedKernels

INNER_NOISE, OUTER_NOISE = 12, 13


class Bilevel:
    """``min_φ F(φ, θ_T(φ))`` with ``θ_T`` the result of training: all that the solver needs to know.

    Parameters
    ----------
    model : nn.Module
        Copied; its present parameters are the starting point.
    outer : nn.Module, optional
        φ: an :class:`OuterVariable`, or any module that a user-written ``inner_loss`` calls. Copied. None: plain
        training.
    train, val : ``(inputs, targets)``, a loader, or a :class:`calibrant.data.Stream`
        Data of the inner and the outer level. ``val`` may be left out for plain training.
    inner_loss, outer_loss : callable ``(net, outer, batch) -> Tensor``
        ``net(x)`` is the network at the current parameters (``net.params`` its named parameters), ``outer`` the outer
        module at the current φ. Vectors are averaged. Defaults: cross-entropy with the outer variable's hooks,
        and plain cross-entropy.
    batch_size, val_batch_size : int, optional
        For tensors: None is the full batch.
    outer_mode : {"eval", "train"}
        How BatchNorm and dropout behave under the outer loss.
    autocast : torch.dtype, optional
        Lower precision for the model's forward pass, ``torch.bfloat16`` say.
    hyper : dict of tensors
        Constants for both losses (``batch.hyper``) that may differ between the members of a population.
    seed : int
        Order of batches, augmentation, dropout.
    """

    members: int | None = None
    ties: None = None
    val: Stream | None
    _hyper: Tensors = {}  # noqa: RUF012 (replaced, never written to)

    def __init__(
        self,
        model: nn.Module,
        outer: nn.Module | None = None,
        *,
        train: Any,
        val: Any = None,
        inner_loss: UserLoss | None = None,
        outer_loss: UserLoss | None = None,
        batch_size: int | None = None,
        val_batch_size: int | None = None,
        outer_mode: str = "eval",
        autocast: torch.dtype | None = None,
        hyper: Tensors | None = None,
        seed: int = 0,
    ) -> None:
        if outer_mode not in ("eval", "train"):
            raise ValueError(f"outer_mode must be 'eval' or 'train'; got {outer_mode!r}.")
        self.view = FunctionalModule(model)
        if self.view.size == 0:
            raise ValueError("The model has no trainable parameters: nothing can be learned at the inner level.")
        outer = OuterVariable() if outer is None else outer
        self.start, self.start_buffers = self.view.initial(), self.view.initial_buffers()
        self.outer_view = FunctionalModule(copy.deepcopy(outer).to(self.start.device, self.start.dtype))
        self.start_phi = self.outer_view.initial()
        self.variables = self.outer_view.module
        if inner_loss is None and not isinstance(outer, OuterVariable):
            raise ValueError(
                f"{type(outer).__name__} is not an OuterVariable, so say how it enters training: "
                "inner_loss=lambda net, outer, batch: …"
            )
        self.inner_loss = inner_loss or DEFAULT_INNER_LOSS
        self.outer_loss = outer_loss or DEFAULT_OUTER_LOSS
        self.outer_mode, self.autocast, self.seed = outer_mode, autocast, seed
        self._batch_sizes = batch_size, val_batch_size
        self._take((train, val), self._batch_sizes, hyper)
        self._kernels = FusedKernels(self.view.module)
        self.stochastic = self._check()

    def replicate(
        self,
        model: nn.Module | Tensor | None = None,
        outer: nn.Module | Tensor | None = None,
        *,
        train: Any = None,
        val: Any = None,
        hyper: Tensors | None = None,
        seed: int | None = None,
    ) -> Bilevel:
        """A problem of the same kind with another start, other data or constants; what is not given stays as it is.

        The replica shares this problem's networks, losses and all that was found out about them, so that it costs a
        small part of a new problem: build one, and the other members of a population from it.

        Parameters
        ----------
        model : nn.Module or vector, optional
            The starting point: a module of the same architecture, or all trainable parameters in one vector
            (``problem.view.draw(seed)`` draws one).
        outer : nn.Module or vector, optional
            φ before the first outer step, in the same two forms.
        train, val, hyper, seed : optional
            As in :class:`Bilevel`. Batch sizes stay; a :class:`calibrant.data.Stream` brings its own sizes, order and
            ``hyper``.
        """
        twin = copy.copy(self)
        if isinstance(model, nn.Module):
            twin.start, twin.start_buffers = self.view.read(model)
        elif model is not None:
            twin.start = _vector(model, self.start, "model")
        if isinstance(outer, nn.Module):
            twin.start_phi, constants = self.outer_view.read(outer)
            if not all(torch.equal(b, constants[k]) for k, b in self.outer_view.initial_buffers().items()):
                raise ValueError("The outer module's buffers are constants that replicas share; those given differ.")
        elif outer is not None:
            twin.start_phi = _vector(outer, self.start_phi, "outer")
        if val is not None and self.val is None:
            raise ValueError("The first problem has no validation data, so its replicas cannot have any.")
        if seed is not None:
            twin.seed = seed
        if not (train is None and val is None and hyper is None and seed is None):
            data = self._data[0] if train is None else train, self._data[1] if val is None else val
            sizes = [None if isinstance(d, Stream) else size for d, size in zip(data, self._batch_sizes, strict=True)]
            twin._take(data, sizes, hyper)
        return twin

    def _take(self, data: tuple[Any, Any], sizes: Sequence[int | None], hyper: Tensors | None) -> None:
        """Make the streams. Tensors are kept as converted, so that replicas share them."""
        if hyper is not None:
            self._hyper = map_tensors(lambda t: t.to(self.start.device), hyper)

        def stream(data: Any, size: int | None, purpose: int) -> Stream:
            constants = {} if hyper is None and isinstance(data, Stream) else self._hyper
            common: dict[str, Any] = {"device": self.start.device, "dtype": self.start.dtype, "hyper": constants}
            return as_stream(data, batch_size=size, seed=mix(self.seed, purpose), **common)

        self.train = stream(data[0], sizes[0], 10)
        self.val = None if data[1] is None else stream(data[1], sizes[1], 11)
        self._data = _kept(data[0], self.train), _kept(data[1], self.val)

    @property
    def head_size(self) -> int:
        """How many entries at the end of the parameter vector belong to the last layer."""
        prefix = self.view.names[-1].rpartition(".")[0]
        return sum(s for k, s in zip(self.view.names, self.view.sizes, strict=True) if k.rpartition(".")[0] == prefix)

    def inner(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """L(θ, φ) on a batch: a pure function."""
        net = self.view.bind(params, buffers, train=True, noise=batch.noise, autocast=self.autocast)
        with self._kernels.replaced():
            loss = self.outer_view.run(phi, lambda outer: self.inner_loss(net, outer, batch))
        return _scalar(loss, "inner"), net.buffers

    def outer(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """F(φ, θ) on a batch: a pure function."""
        net = self.view.bind(
            params, buffers, train=self.outer_mode == "train", noise=batch.noise, autocast=self.autocast
        )
        with self._kernels.replaced(twice=False):
            loss = self.outer_view.run(phi, lambda outer: self.outer_loss(net, outer, batch))
        return _scalar(loss, "outer"), net.buffers

    def initial_params(self, phi: Tensor) -> Tensor:
        """θ_0 = Φ_0(φ)."""
        start = self.start.clone()
        if isinstance(self.variables, OuterVariable):
            return self.outer_view.run(phi, lambda outer: outer.initial(start))
        return start

    def initial_buffers(self) -> Tensors:
        """The module's buffers before training."""
        return {k: b.clone() for k, b in self.start_buffers.items()}

    def initial_phi(self) -> Tensor:
        """φ before the first outer step."""
        return self.start_phi.clone()

    @property
    def moves_start(self) -> bool:
        """Whether the starting point depends on φ."""
        return isinstance(self.variables, OuterVariable) and self.variables.moves_start

    def project(self, phi: Tensor) -> Tensor:
        """φ put back into its set after an outer step."""
        project = getattr(self.variables, "project", None)
        if project is None or self.outer_view.size == 0:
            return phi
        return self.outer_view.flatten(project(self.outer_view.unflatten(phi)))

    def train_batch(self, step: int) -> Batch:
        """The batch of an inner step with all its random numbers."""
        return self._with_noise(self.train.batch(step), step, INNER_NOISE)

    def val_batch(self, step: int) -> Batch:
        """The batch of an outer step with all its random numbers."""
        if self.val is None:
            raise ValueError("The outer level needs validation data: Bilevel(..., val=(inputs, targets)).")
        batch = self.val.batch(step)
        return self._with_noise(batch, step, OUTER_NOISE) if self.outer_mode == "train" else batch

    def _with_noise(self, batch: Batch, step: int, purpose: int) -> Batch:
        if not (self.view.dropouts or self.stochastic):
            return batch
        seed = self.noise_seed(step, purpose)
        if self.view.dropouts:
            return batch._replace(noise=self.masks(seed, batch, purpose), seed=seed if self.stochastic else None)
        return batch._replace(seed=seed)

    def noise_seed(self, step: int, purpose: int) -> int:
        """The seed of a step's random numbers."""
        return mix(self.seed, step, purpose)

    def masks(self, seed: int | Sequence[int], batch: Batch, purpose: int) -> Tensors:
        """The dropout masks of a step; with several seeds, as many of each along a leading axis."""
        level = self.inner if purpose == INNER_NOISE else self.outer
        return self.view.draw_noise(
            seed,
            batch.inputs,
            evaluate=lambda params, buffers: level(params, buffers, self.initial_phi(), batch),
            kind=purpose,
        )

    def _check(self) -> bool:
        """Evaluate the inner loss once: complain early, and find out whether it draws random numbers of its own."""
        self.stochastic = False
        batch = self.train_batch(0)
        if getattr(self.variables, "needs_index", False):
            batch.require_index(type(self.variables).__name__)
        params = self.start
        cuda = [params.device] if params.is_cuda else []
        with torch.no_grad(), torch.random.fork_rng(devices=cuda), self._kernels.observed():
            before = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in cuda)]
            self.inner(params, self.initial_buffers(), self.initial_phi(), batch)
            after = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in cuda)]
        return not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _vector(values: Tensor, like: Tensor, name: str) -> Tensor:
    if values.shape != like.shape:
        raise ValueError(
            f"{name} must be a module or a vector of {like.numel()} numbers; got shape {tuple(values.shape)}."
        )
    return values.detach().to(like, copy=True)


def _kept(given: Any, stream: Stream | None) -> Any:
    """What a replica makes its stream of: the user's own, or tensors as they were converted."""
    return (stream.inputs, stream.targets) if isinstance(stream, TensorStream) and stream is not given else given


def _scalar(loss: Tensor, level: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim() > 1:
        got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"The {level} loss must be one value, or one a sample (they are averaged); got {got}.")
    return loss.mean() if loss.dim() == 1 else loss
