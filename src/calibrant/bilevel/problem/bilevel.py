"""A bilevel problem: a model, outer variables, two losses and two streams of data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.bilevel.gradients.loss_derivatives import Watch
from calibrant.bilevel.problem import checks
from calibrant.bilevel.problem.objectives import DEFAULT_INNER_LOSS, DEFAULT_OUTER_LOSS, UserLoss
from calibrant.bilevel.variables.base import OuterVariable
from calibrant.data.streams.batch import Batch, Tensors, map_tensors
from calibrant.data.streams.loaders import as_stream
from calibrant.data.streams.streams import Stream, TensorStream, mix
from calibrant.models.functional.functional_module import FunctionalModule
from calibrant.models.functional.heads import Head
from calibrant.models.functional.kernels import FusedKernels

INNER_NOISE, OUTER_NOISE = 12, 13
"""Each level draws its random numbers from its own seeds."""
NO_VALIDATION_DATA = "The outer level needs validation data: give Bilevel(..., val=(inputs, targets))."


class Bilevel:
    """A bilevel problem ``min_φ F(φ, θ_T(φ))``, where ``θ_T`` is the result of training.

    Eq. (5) of Sanguin et al. 2024, with w for φ, f for F and g for the inner loss.

    Parameters
    ----------
    model : nn.Module
        It is copied. Its present parameters are the starting point.
    outer : nn.Module, optional
        φ: an :class:`OuterVariable`, or any module that your ``inner_loss`` calls. It is copied. None gives plain
        training.
    train, val : ``(inputs, targets)``, a loader, or a :class:`calibrant.data.Stream`
        The data of the inner and the outer level. Plain training needs no ``val``.
    inner_loss, outer_loss : callable ``(net, outer, batch) -> Tensor``
        ``net.logits(x)`` gives the logits at the current parameters, ``net.features(x)`` and ``net.head(h)`` the two
        parts of the network, ``net(x)`` the output of the module itself, and ``net.params`` the named parameters; see
        :class:`calibrant.models.Network`. ``outer`` is the outer module at the current φ. A vector of losses is
        averaged. Defaults: cross-entropy with the outer variable's hooks, and plain cross-entropy.
    head : str, optional
        The name of the submodule whose output is the logits, such as ``"fc"``. By default it is the one linear layer
        whose output is the logits, found by running the model.
    channels_last : bool
        Run 2-D convolutions with the channel as the last dimension, which is faster on GPUs.
    batch_size, val_batch_size : int, optional
        Batch sizes for tensors. None uses all samples in each batch.
    autocast : torch.dtype, optional
        A lower precision for the model's forward pass, such as ``torch.bfloat16``.
    hyper : dict of tensors
        Constants for both losses (``batch.hyper``). They may differ between the members of a population.
    seed : int
        The seed of the order of batches, of augmentation and of dropout.
    """

    members: int | None = None
    shared_phi: None = None
    axes: None = None
    outer_axes: None = None
    val: Stream | None

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
        head: str | None = None,
        autocast: torch.dtype | None = None,
        channels_last: bool = False,
        hyper: Tensors | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module; got {model!r}.")
        for name, loss in (("inner_loss", inner_loss), ("outer_loss", outer_loss)):
            if loss is not None:
                checks.check_loss(loss, name)
        self.view = FunctionalModule(model, channels_last=channels_last)
        if self.view.size == 0:
            raise ValueError("The model must have trainable parameters; got none. Set requires_grad=True for some.")
        outer = OuterVariable() if outer is None else outer
        checks.check_outer_module(outer)
        self.start, self.start_buffers = self.view.values, self.view.initial_buffers()
        self.outer_view = FunctionalModule(copy.deepcopy(outer).to(self.start.device, self.start.dtype))
        self.start_phi = self.outer_view.initial().to(self.start.device)  # a module without parameters has no device
        self.variables = self.outer_view.module
        checks.check_embeddings(model, bilevel=self.outer_view.size > 0)
        if inner_loss is None and not isinstance(outer, OuterVariable):
            raise ValueError(
                f"inner_loss must be given, since {type(outer).__name__} is not an OuterVariable; got None. Pass a "
                "function inner_loss(net, outer, batch)."
            )
        self.inner_loss = inner_loss or DEFAULT_INNER_LOSS
        self.outer_loss = outer_loss or DEFAULT_OUTER_LOSS
        self.autocast, self.seed = autocast, seed
        self._batch_sizes = batch_size, val_batch_size
        self._hyper: Tensors = {}
        self._take((train, val), self._batch_sizes, hyper)
        self.kernels = FusedKernels(self.view.module)
        self._loss_checks: dict[str, Any] = {}  # results of checks of the losses, shared with replicas
        self.stochastic = False
        self._head_name = head
        if head is not None:  # before the losses run, because they may use features
            self.view.locate(self.train.batch(0).inputs, head)
        self.stochastic, self.detaches = check_inner_loss(self, self.kernels)

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
        """A problem of the same kind with another starting point, other data or other constants.

        Arguments that are not given keep their values. The replica shares this problem's network, losses and the
        results of their checks, so it is much cheaper than a new problem. Build one problem, and replicate it for the
        other members of a population.

        Parameters
        ----------
        model : nn.Module or vector, optional
            The starting point: a module of the same architecture, or all trainable parameters as one vector, such as
            ``problem.view.draw(seed)``.
        outer : nn.Module or vector, optional
            φ before the first outer step, as a module or a vector.
        train, val, hyper, seed : optional
            As in :class:`Bilevel`. Batch sizes stay the same, except that a :class:`calibrant.data.Stream` has its own
            sizes, order and ``hyper``.
        """
        twin = copy.copy(self)
        if isinstance(model, nn.Module):
            twin.start, twin.start_buffers = self.view.read(model)
        elif model is not None:
            twin.start = _vector(model, self.start, "model")
        if isinstance(outer, nn.Module):
            twin.start_phi, constants = self.outer_view.read(outer)
            if not all(torch.equal(b, constants[k]) for k, b in self.outer_view.initial_buffers().items()):
                raise ValueError(
                    "The buffers of outer must equal those of the first problem, since replicas share them; got others."
                )
        elif outer is not None:
            twin.start_phi = _vector(outer, self.start_phi, "outer")
        if val is not None and self.val is None:
            raise ValueError(
                "val must be None, since the first problem has no validation data; got some. Give it to the first "
                "problem."
            )
        if seed is not None:
            twin.seed = seed
        if not (train is None and val is None and hyper is None and seed is None):
            data = self._data[0] if train is None else train, self._data[1] if val is None else val
            sizes = [None if isinstance(d, Stream) else size for d, size in zip(data, self._batch_sizes, strict=True)]
            twin._take(data, sizes, hyper)
            checks.check_samples(twin.variables, twin.train)
        return twin

    def _take(self, data: tuple[Any, Any], sizes: Sequence[int | None], hyper: Tensors | None) -> None:
        """Make the data streams. Converted tensors are kept, so that replicas share them."""
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
    def problems(self) -> list[Bilevel]:
        """The single problems that this one consists of."""
        return [self]

    @property
    def template(self) -> Bilevel:
        """The problem whose network and losses all members have."""
        return self

    def each_member(self, level: Literal["inner", "outer"], fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn`` for every member. Its last argument is a batch of this level."""
        return fn

    def inner(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """L(θ, φ) on a batch: a pure function."""
        net = self.view.bind(params, buffers, train=True, noise=batch.noise, autocast=self.autocast)
        with self.kernels.replaced():
            return self.inner_value(net, phi, batch), net.buffers

    def outer(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """F(φ, θ) on a batch: a pure function. The network is in evaluation mode."""
        net = self.view.bind(params, buffers, train=False, autocast=self.autocast)
        with self.kernels.replaced(twice=False):
            return self.outer_value(net, phi, batch), net.buffers

    def inner_value(self, net: Any, phi: Tensor, batch: Batch) -> Tensor:
        """L on a batch, with any object that has the network's interface."""
        return _scalar(self.outer_view.run(phi, lambda outer: self.inner_loss(net, outer, batch)), "inner")

    def outer_value(self, net: Any, phi: Tensor, batch: Batch) -> Tensor:
        """F on a batch, with any object that has the network's interface."""
        return _scalar(self.outer_view.run(phi, lambda outer: self.outer_loss(net, outer, batch)), "outer")

    def initial_params(self, phi: Tensor) -> Tensor:
        """θ_0 = Φ_0(φ)."""
        start = self.start.clone()
        if isinstance(self.variables, OuterVariable):
            initial = self.outer_view.run(phi, lambda outer: outer.initial(start))
            if initial.shape != start.shape:
                raise ValueError(
                    f"{type(self.variables).__name__}.initial must return a vector of the network's {len(start)} "
                    f"parameters; got shape {tuple(initial.shape)}."
                )
            return initial
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
        """φ projected onto its allowed set, after an outer step."""
        if not isinstance(self.variables, OuterVariable) or self.outer_view.size == 0:
            return phi
        values = self.outer_view.unflatten(phi)
        projected = self.variables.project(dict(values))
        shapes, new_shapes = _shapes(values), _shapes(projected)
        if new_shapes is None or any(new_shapes.get(name) != shape for name, shape in shapes.items()):
            raise ValueError(
                f"{type(self.variables).__name__}.project must return all values by name, with their shapes {shapes}; "
                f"got {projected if new_shapes is None else new_shapes}."
            )
        return self.outer_view.flatten(projected)

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

    def train_batch(self, step: int) -> Batch:
        """The batch of an inner step, with all its random numbers."""
        batch = self.train.batch(step)
        if not (self.view.dropouts or self.stochastic):
            return batch
        seed = self.noise_seed(step)
        noise = self.masks(seed, batch) if self.view.dropouts else batch.noise
        return batch._replace(noise=noise, seed=seed if self.stochastic else None)

    def val_batch(self, step: int) -> Batch:
        """The batch of an outer step, with all its random numbers."""
        if self.val is None:
            raise ValueError(NO_VALIDATION_DATA)
        batch = self.val.batch(step)
        if "outer_draws" not in self._loss_checks:
            self._loss_checks["outer_draws"] = check_outer_loss(self, batch)
        return batch._replace(seed=mix(self.seed, step, OUTER_NOISE)) if self._loss_checks["outer_draws"] else batch

    def noise_seed(self, step: int) -> int:
        """The seed of the random numbers of a training step."""
        return mix(self.seed, step, INNER_NOISE)

    def masks(self, seed: int | Sequence[int], batch: Batch) -> Tensors:
        """The dropout masks of a training step. Several seeds give masks with a leading axis."""
        return self.view.draw_noise(
            seed, batch.inputs, evaluate=lambda params, buffers: self.inner(params, buffers, self.initial_phi(), batch)
        )

    def depends(self, level: Literal["inner", "outer"]) -> tuple[bool, bool]:
        """Whether a level's loss depends on θ and on φ, on its first batch."""
        if level not in self._loss_checks:
            fn, batch = (self.inner, self.train_batch(0)) if level == "inner" else (self.outer, self.val_batch(0))
            params, phi = (t.clone().requires_grad_() for t in (self.start, self.start_phi))
            loss, _ = checks.with_graph(lambda: fn(params, self.initial_buffers(), phi, batch), params)
            self._loss_checks[level] = checks.depends(loss, params, phi)
        return self._loss_checks[level]


def _shapes(values: Any) -> Any:
    """The shapes of tensors by name; None if ``values`` is something else."""
    return {name: tuple(value.shape) for name, value in values.items()} if isinstance(values, Mapping) else None


def _vector(values: Tensor, like: Tensor, name: str) -> Tensor:
    if values.shape != like.shape:
        raise ValueError(
            f"{name} must be a module or a vector of {like.numel()} numbers; got shape {tuple(values.shape)}."
        )
    return values.detach().to(like, copy=True)


def _kept(data: Any, stream: Stream | None) -> Any:
    """The data from which a replica makes its stream: converted tensors, or what the user gave."""
    return (stream.inputs, stream.targets) if isinstance(stream, TensorStream) and stream is not data else data


def _scalar(loss: Tensor, level: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim() > 1:
        got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"The {level} loss must be one value, or a vector with one value per sample; got {got}.")
    return loss.mean() if loss.dim() == 1 else loss


def check_inner_loss(problem: Bilevel, kernels: FusedKernels) -> tuple[bool, bool]:
    """Evaluate the inner loss, so that mistakes are found early.

    Returns whether it draws random numbers, and whether it detaches anything. ``kernels`` notes which fused kernels it
    uses.
    """
    checks.check_samples(problem.variables, problem.train)
    for stream in (problem.train, problem.val):
        checks.check_augment(stream)
    batch = problem.train_batch(0)
    if isinstance(problem.variables, OuterVariable) and problem.variables.needs_index:
        batch.require_index(type(problem.variables).__name__)
    phi, softmax, detached = problem.initial_phi(), checks.SoftmaxWatch(), Watch()

    def evaluate() -> Tensor:
        with detached:
            return problem.inner(problem.start, problem.initial_buffers(), phi, batch)[0]

    with kernels.observed(), softmax:
        drawn = checks.draws_random_numbers(evaluate, level="inner", like=problem.start, autocast=problem.autocast)
    softmax.warn()
    if problem.outer_view.size:
        _find_carried_buffers(problem, batch)
    problem.depends("inner")
    return drawn, detached.seen


def check_outer_loss(problem: Bilevel, batch: Batch) -> bool:
    """Evaluate the outer loss. Returns whether it draws random numbers."""
    return checks.draws_random_numbers(
        lambda: problem.outer(problem.start, problem.initial_buffers(), problem.initial_phi(), batch)[0],
        level="outer",
        like=problem.start,
        autocast=problem.autocast,
    )


def _find_carried_buffers(problem: Bilevel, batch: Batch) -> None:
    """Find the buffers that carry gradient from step to step, and warn of those that change without a graph."""
    params, phi = problem.start.clone().requires_grad_(), problem.initial_phi().requires_grad_()

    def evaluate(buffers: Tensors) -> Tensors:
        return checks.with_graph(lambda: problem.inner(params, buffers, phi, batch)[1], params)

    view, differentiable = problem.view, problem.view.differentiable_buffers
    view.differentiable_buffers, unseen = checks.carried_buffers(evaluate, problem.initial_buffers(), differentiable)
    if problem.val is not None:
        checks.warn_of_buffers(unseen)
