"""First and second derivatives of the loss of one level, by reverse-mode autograd.

Detached tensors in the inner loss, through which a hypergradient must still differentiate. A loss such as
``focal(logits, y, gamma_net(features.detach()))`` is differentiated with γ held fixed. But its gradient ``g(θ)``
depends on θ through γ, and so does every later step. Double backward misses that path, because ``detach()`` cut it in
the forward pass. Here a detached tensor keeps its graph behind a :class:`Gate`. The gate is closed while ``g`` is
computed, and open while ``g`` is differentiated.

First and second derivatives of one level's loss, by reverse-mode autograd. A level is a pure function
``loss, buffers' = fn(params, buffers, phi, batch)``. With a leading population axis the loss is a vector with one entry
per member. Members do not interact, so the gradient of the sum contains each member's own gradient. Everything below
works for one problem and for a population.

The second-order product uses double backward. :meth:`LossDerivatives.linearize` keeps the graph of one gradient
``g = ∇θ L``, and its ``pull`` turns an adjoint of ``g`` into the Hessian-vector product and the cross term in one pass.
To save memory, call ``linearize`` again at the stored state. No forward mode is needed, so attention, recurrent
networks and custom functions work if they have a double backward.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from calibrant.data.streams.batch import Batch, Tensors, tensors_of
from calibrant.models.functional.global_state import seeded_generators


def tensor_bytes(tree: Any, beside: Any = ()) -> int:
    """The bytes of the tensors in a nested structure.

    Shared storage counts once, and storage of the tensors in ``beside`` does not count.
    """
    counted = _storages(beside)
    return sum(size for place, size in _storages(tree).items() if place not in counted)


def _storages(tree: Any) -> dict[int, int]:
    """The places of the tensors' storages in memory, and their sizes."""
    storages = [leaf.untyped_storage() for leaf in tensors_of(tree)]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


_DETACH = (Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
_TO_NUMPY = (Tensor.numpy, Tensor.__array__, Tensor.tolist)
_SET_GRAD = torch._C._set_grad_enabled


class Gate:
    """A switch: gradient passes through detached tensors while ``open`` is True.

    It is closed while the gradient is computed, and open while that gradient is differentiated.
    """

    def __init__(self) -> None:
        self.open = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Let gradient pass inside the block."""
        self.open = True
        try:
            yield
        finally:
            self.open = False


class _Gated(torch.autograd.Function):
    """The identity. Its gradient is zero unless the gate is open."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gate: Gate) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.gate = inputs[1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return (slope if ctx.gate.open else torch.zeros_like(slope)), None


def constant(tensor: Tensor) -> Tensor:
    """A detached tensor that stays a constant for hypergradients, too, because no gate replaces it."""
    with torch._C.DisableTorchFunction():
        return tensor.detach()


class Watch(TorchFunctionMode):
    """Detects whether a loss detaches anything, by ``detach()``, ``.data`` or ``torch.no_grad()``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= func in _DETACH or (func is _SET_GRAD and not args[0])
        return func(*args, **(kwargs or {}))


class Keep(TorchFunctionMode):
    """Replaces every ``detach()``, ``.data`` and ``torch.no_grad()`` inside the block by a gate.

    Operations under ``torch.no_grad()`` are still recorded. Their results pass the gate when they are used outside.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self._inside: dict[int, Tensor] = {}
        self._gated: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SET_GRAD:
            return func(*args, **kwargs)
        if func in _TO_NUMPY:
            return func(args[0].detach(), *args[1:], **kwargs)
        if not torch.is_grad_enabled():
            return self._under_no_grad(func, args, kwargs)
        if self._inside:
            args, kwargs = pytree.tree_map(self._passed, (args, kwargs))
        if func in _DETACH and args[0].is_floating_point():  # under vmap, requires_grad is always False
            return _Gated.apply(args[0], self.gate)
        return func(*args, **kwargs)

    def _under_no_grad(self, func: Any, args: Any, kwargs: Any) -> Any:
        # Values are saved as copies, because code under no_grad may overwrite them, as spectral normalisation does.
        with torch.enable_grad(), saved_tensors_hooks(torch.clone, _unchanged):
            if func in _DETACH and args[0].is_floating_point():
                result = args[0].view_as(args[0])
            elif kwargs.get("out") is not None:  # autograd does not record writing into given tensors
                other_arguments = {k: v for k, v in kwargs.items() if k != "out"}
                result = kwargs["out"].copy_(func(*args, **other_arguments))
            else:
                result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                self._inside[id(leaf)] = leaf
        return result

    def _passed(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) not in self._inside:
            return leaf
        if id(leaf) not in self._gated:
            self._gated[id(leaf)] = _Gated.apply(leaf, self.gate)
        return self._gated[id(leaf)]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


LossFunction = Callable[[Tensor, Tensors, Tensor, Batch], tuple[Tensor, Tensors]]


class Adjoint(NamedTuple):
    """The result of ``pull``: adjoints of the step's inputs. ``params`` is None if it was not requested."""

    params: Tensor | None
    phi: Tensor
    buffers: Tensors


@dataclass(frozen=True)
class Gradient:
    """A loss, its gradient in the parameters, the buffers after the pass, and the derivatives of the gradient.

    ``pull(d_grad, d_buffers, params=True, retain=False)`` is the transpose of the derivative of
    ``(θ, φ, buffers) ↦ (g, buffers')``.
    """

    loss: Tensor
    grad: Tensor
    buffers: Tensors
    pull: Callable[..., Adjoint]


class FullGradient(NamedTuple):
    """The first derivatives of an outer loss in all its inputs."""

    loss: Tensor
    params: Tensor
    phi: Tensor
    buffers: Tensors
    reaches_network: bool = True
    """Whether the loss has a derivative in the parameters or the buffers."""


class LossDerivatives:
    """A loss function and its derivatives, evaluated eagerly.

    Parameters
    ----------
    fn : callable
        The pure loss.
    differentiable_buffers : sequence of str
        Buffers through which gradient flows (BatchNorm's running statistics). All other buffers are constants.
    detaches : bool
        Whether the loss detaches anything; see :mod:`calibrant.bilevel.gradients.loss_derivatives`.
    """

    def __init__(self, fn: LossFunction, differentiable_buffers: Sequence[str] = (), *, detaches: bool = False) -> None:
        self.fn, self.detaches = fn, detaches
        self.differentiable_buffers = tuple(differentiable_buffers)
        self.graph_bytes: int | None = None

    def eager(self) -> LossDerivatives:
        """The same derivatives, whose :attr:`Gradient.pull` can be differentiated."""
        return LossDerivatives(self.fn, self.differentiable_buffers, detaches=self.detaches)

    def value(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """The loss and the buffers after the pass, without a graph."""
        with torch.no_grad(), seeded(batch.seed, params):
            return self.fn(params, buffers, phi, batch._replace(seed=None))

    def gradient(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensors]:
        """The loss, ``∇θ L``, and the buffers after the pass."""
        with seeded(batch.seed, params):
            return first_order(self.fn, params, buffers, phi, batch._replace(seed=None))

    def linearize(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> Gradient:
        """The gradient together with the graph that differentiates it."""
        params, phi = _leaf(params), _leaf(phi)
        buffers = {k: _leaf(b) if k in self.differentiable_buffers else b for k, b in buffers.items()}
        gate = Gate()
        with seeded(batch.seed, params), torch.enable_grad():
            with Keep(gate) if self.detaches else _NOTHING:
                loss, after = self.fn(params, buffers, phi, batch._replace(seed=None))
            grad = _gradients(loss.sum(), [params], create_graph=True)[0]
        tracked = {k: b for k, b in after.items() if b.requires_grad}
        inputs = [params, phi, *(buffers[k] for k in self.differentiable_buffers)]

        def pull(d_grad: Tensor, d_buffers: Tensors, *, params: bool = True, retain: bool = False) -> Adjoint:
            outputs, seeds = [grad], [d_grad]
            for name, adjoint in d_buffers.items():
                if name in tracked:
                    outputs.append(tracked[name])
                    seeds.append(adjoint)
            wanted = inputs if params else inputs[1:2]
            with gate.opened():
                twice = d_grad.requires_grad  # the transpose is linear, and its own transpose is the derivative
                adjoints = _gradients(outputs, wanted, seeds, create_graph=twice, retain_graph=retain or twice)
            if not params:
                return Adjoint(None, adjoints[0], {})
            back = dict(zip(self.differentiable_buffers, adjoints[2:], strict=True)) if d_buffers else {}
            return Adjoint(adjoints[0], adjoints[1], back)

        return Gradient(loss.detach(), grad.detach(), detached(after), pull)

    def measure(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> int:
        """The bytes that one kept graph holds in addition to its inputs."""
        saved: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            saved.append(tensor.detach())
            return saved[-1]

        with saved_tensors_hooks(keep, _unchanged):
            kept = self.linearize(params, buffers, phi, batch)
        given = params, buffers, phi, batch._replace(seed=None)
        return tensor_bytes((saved, kept.loss, kept.grad, kept.buffers), beside=given)

    def gradients(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> FullGradient:
        """First derivatives in parameters, outer variables and buffers: the ∇f of Eq. (8) of the first paper."""
        with seeded(batch.seed, params):
            return full_first_order(
                self.fn, self.differentiable_buffers, params, buffers, phi, batch._replace(seed=None)
            )


def first_order(
    fn: LossFunction, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch
) -> tuple[Tensor, Tensor, Tensors]:
    """``L, ∇θ L, buffers'``."""
    params = _leaf(params)
    with torch.enable_grad():
        loss, after = fn(params, buffers, phi, batch)
        grad = _gradients(loss.sum(), [params])[0]
    return loss.detach(), grad, detached(after)


def full_first_order(
    fn: LossFunction, names: Sequence[str], params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch
) -> FullGradient:
    """``F, ∇θ F, ∇φ F`` and the gradient in those of the named buffers that F uses."""
    params, phi = _leaf(params), _leaf(phi)
    buffers = {k: _leaf(b) if k in names else b for k, b in buffers.items()}
    with torch.enable_grad():
        loss, _ = fn(params, buffers, phi, batch)
        if not loss.requires_grad:
            raise ValueError(
                "The outer loss must depend on the network or on the outer variables. Use net or outer in it, and do "
                "not detach the result."
            )
        used = [buffers[k] for k in names]
        grads = torch.autograd.grad(loss.sum(), [params, phi, *used], allow_unused=True)
    d_params, d_phi = (torch.zeros_like(t) if g is None else g for t, g in zip((params, phi), grads[:2], strict=True))
    d_buffers = {k: g for k, g in zip(names, grads[2:], strict=True) if g is not None}
    return FullGradient(loss.detach(), d_params, d_phi, d_buffers, grads[0] is not None or bool(d_buffers))


def seeded(seed: int | None, like: Tensor) -> contextlib.AbstractContextManager[None]:
    """Seed torch's random numbers inside the block, and restore its state afterwards. None does nothing.

    A step that is evaluated twice with the same seed draws the same numbers. So a backward sweep can replay layers
    whose random numbers cannot be passed in.
    """
    return _NOTHING if seed is None else seeded_generators(seed, like)


_NOTHING = contextlib.nullcontext()


def detached(tensors: Tensors) -> Tensors:
    """The tensors without their graph."""
    return {k: t.detach() for k, t in tensors.items()}


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _gradients(
    outputs: Tensor | list[Tensor],
    inputs: list[Tensor],
    seeds: list[Tensor] | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> list[Tensor]:
    """``torch.autograd.grad`` that returns zeros for inputs that nothing depends on."""
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    seeds = [torch.ones_like(o) for o in outputs] if seeds is None else seeds
    live = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    if not live:
        return [torch.zeros_like(x) for x in inputs]
    try:
        gradients = torch.autograd.grad(
            [o for o, _ in live],
            inputs,
            [s for _, s in live],
            create_graph=create_graph,
            retain_graph=retain_graph,
            allow_unused=True,
        )
    except RuntimeError as error:
        missing = re.search(r"derivative for '?(?:aten::)?_?(\w+)_backward'? is not implemented", str(error))
        if missing is None:
            raise
        raise NotImplementedError(
            f"The inner loss uses {missing[1]}, which has no second derivative in torch, so hypergradients cannot pass "
            "through it. Use another operation, or differentiate only the last layer: OneStep or Implicit with "
            "scope='head'."
        ) from error
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)]
