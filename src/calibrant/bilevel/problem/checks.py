"""Checks before training, so that mistakes become errors instead of wrong numbers."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant.base.warning import warn
from calibrant.bilevel.gradients.loss_derivatives import seeded
from calibrant.bilevel.variables.base import OuterVariable
from calibrant.data.streams.batch import Tensors
from calibrant.data.streams.loaders import Indexed, LoaderStream, length_of
from calibrant.data.streams.streams import Stream, TensorStream
from calibrant.models.functional.global_state import generators_restored


def check_samples(variables: nn.Module, train: Stream) -> None:
    """Raise an error if a per-sample outer variable does not fit the number of training samples, if that is known."""
    for part in variables.modules():
        if not isinstance(part, OuterVariable) or part.samples is None:
            continue
        name = type(part).__name__
        if isinstance(train, TensorStream) and train.index is not None:
            largest = int(train.index.max())
            if largest >= part.samples:
                raise ValueError(
                    f"The indices of the training data must be below {part.samples}, the number of samples that {name} "
                    f"was made for; got {largest}."
                )
            continue
        size = train.size if isinstance(train, TensorStream) else _indexed_size(train)
        if size is not None and size != part.samples:
            raise ValueError(
                f"{name} must be made for the {size} samples of the training set; got {part.samples} samples."
            )


def _indexed_size(train: Stream) -> int | None:
    """The length of the data set that a loader's indices refer to, if it is known."""
    dataset = getattr(train.loader, "dataset", None) if isinstance(train, LoaderStream) else None
    return length_of(dataset) if isinstance(dataset, Indexed) else None


def check_loss(loss: Any, name: str) -> None:
    """Raise an error if a loss cannot be called with ``(net, outer, batch)``."""
    wrapper = "composed" if name == "inner_loss" else "averaged"
    advice = f"For a loss of logits and targets, pass {name}=calibrant.bilevel.{wrapper}(loss)."
    if not callable(loss):
        raise TypeError(f"{name} must be a function of (net, outer, batch); got {loss!r}. {advice}")
    loss_name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", repr(loss))
    home = (type(loss) if isinstance(loss, nn.Module) else loss).__module__ or ""
    if home.partition(".")[0] == "torch":
        raise TypeError(f"{name} must be a function of (net, outer, batch); got torch's {loss_name}. {advice}")
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"{name} must be a function of (net, outer, batch); got {loss_name}{signature}, which cannot be called "
            f"with three arguments. {advice}"
        ) from None


def check_outer_module(module: nn.Module) -> None:
    """Raise an error for layers of the outer module that update buffers, because its buffers are constants."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"outer must be an nn.Module, such as SampleWeights(n); got a {type(module).__name__}. A tensor can be put "
            'into nn.ParameterDict({"name": tensor}).'
        )
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm | _InstanceNorm) and layer.track_running_stats and layer.training:
            raise ValueError(
                f"The outer module's layer {name or type(layer).__name__!r} is a {type(layer).__name__} in training "
                "mode, whose running statistics would never be updated. Use LayerNorm, or call eval() on that layer."
            )


def check_embeddings(model: nn.Module, *, bilevel: bool) -> None:
    """Raise an error for trainable embeddings that change themselves, or whose gradient is not that of the loss."""
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Embedding | nn.EmbeddingBag) or not layer.weight.requires_grad:
            continue
        if layer.max_norm is not None:
            raise ValueError(
                f"The layer {name!r} must have max_norm=None; got {layer.max_norm}. It would change its own parameters "
                "in each forward pass, and a training step must be a pure function."
            )
        if layer.scale_grad_by_freq and bilevel:
            raise ValueError(
                f"The layer {name!r} must have scale_grad_by_freq=False for hypergradients, since torch does not scale "
                "second derivatives in the same way; got True."
            )


def check_augment(stream: Stream | None) -> None:
    """Raise an error if an augmentation does not draw all its random numbers from the given generator."""
    if not isinstance(stream, TensorStream) or (stream.augment is None and stream.augment_batch is None):
        return
    with foreign_generators_restored(), generators_restored(stream.targets):
        drawn = [stream.draw(0) for _ in range(2)]
    first, second = (pytree.tree_leaves((batch.inputs, batch.targets)) for batch in drawn)
    if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)):
        raise ValueError(
            "The augmentation gave two different batches for the same step. Take all its random numbers from the "
            "generator that it is given, not from NumPy, random or torch's global generator."
        )


def draws_random_numbers(
    evaluate: Callable[[], Tensor], *, level: str, like: Tensor, autocast: torch.dtype | None = None
) -> bool:
    """Whether a loss draws from torch's global generator. Raises an error if it draws from any other generator.

    ``evaluate()`` computes the loss. It is called twice with the same seed, and both values must be equal.
    """
    tolerance = 1e-5 if autocast is None and torch.finfo(like.dtype).bits >= 32 else 1e-2
    drawn = False

    def value() -> Tensor:
        nonlocal drawn
        with torch.no_grad(), seeded(0, like):
            before = generator_states(like)
            loss = evaluate().detach()
            drawn = not all(map(torch.equal, before, generator_states(like)))
        return loss

    with foreign_generators_restored():
        first, second = value(), value()
        # The first evaluation may use other kernels than the second, but the third uses the same as the second.
        same = _equal(first, second, tolerance) or _equal(second, value(), tolerance)
    if not same:
        raise ValueError(
            f"The {level} loss gave two different values with the same parameters, batch and torch seed. It draws "
            "random numbers from NumPy, random or its own Generator, or it keeps state between calls. Draw random "
            "numbers in the data stream (augment) or from torch's global generator."
        )
    return drawn


def generator_states(like: Tensor) -> list[Tensor]:
    """The states of torch's global generators: that of the CPU, and that of the device of ``like``."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(like.device)] if like.is_cuda else [])]


def _equal(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True)


@contextlib.contextmanager
def foreign_generators_restored() -> Iterator[None]:
    """Restore the global generators of NumPy and of ``random`` after the block."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the user's global state)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


T = TypeVar("T")


def with_graph(evaluate: Callable[[], T], params: Tensor) -> T:
    """``evaluate()`` with a graph that is only looked at. On a GPU, tensors that the graph keeps move to the CPU."""

    def evaluate_with_graph() -> T:
        with torch.enable_grad(), seeded(0, params), foreign_generators_restored():
            return evaluate()

    if params.is_cuda:
        with contextlib.suppress(RuntimeError), torch.autograd.graph.save_on_cpu():  # fails in torch.func transforms
            return evaluate_with_graph()
    return evaluate_with_graph()


def depends(loss: Tensor, params: Tensor, phi: Tensor) -> tuple[bool, bool]:
    """Whether the graph of ``loss`` reaches each of the two leaves."""
    leaves = {id(getattr(node, "variable", None)) for node in nodes(loss)}
    return id(params) in leaves, id(phi) in leaves


def nodes(loss: Tensor) -> Iterator[Any]:
    """The nodes of the graph of ``loss``."""
    queue, seen = [loss.grad_fn], {None, loss.grad_fn}
    while queue:
        node = queue.pop()
        if node is not None:
            yield node
            fresh = {following for following, _ in node.next_functions} - seen
            seen |= fresh
            queue.extend(fresh)


def check_levels(problem: Any, *, plain: bool, direct: bool = False) -> None:
    """Raise an error if a loss does not depend on its level's variables, on the first batches.

    ``plain`` means that φ is fixed, ``direct`` that only the outer loss needs to depend on φ.
    """
    in_params, in_phi = problem.depends("inner")
    if not in_params:
        raise ValueError(
            "The inner loss does not depend on the network's parameters, so nothing would be trained. Call net(...) in "
            "it, and do not detach its output."
        )
    if plain or in_phi or problem.moves_start:
        return
    if not problem.depends("outer")[1]:
        raise ValueError(
            "The outer variables occur neither in the inner nor in the outer loss, so their hypergradient is always "
            "zero. Use the argument `outer` in the inner loss."
        )
    if direct:
        return
    warn(
        "The inner loss does not depend on the outer variables, so they do not affect training. They move only by "
        "terms of the outer loss that contain them, such as a prior. Use the argument `outer` in the inner loss, or "
        "choose Direct as hypergradient."
    )


class SoftmaxWatch(TorchDispatchMode):
    """Detects a softmax of values that are already probabilities, because the network ends in a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.saw_probabilities = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in ("aten::_softmax", "aten::_log_softmax"):
            self.saw_probabilities |= _are_probabilities(args[0], args[1])
        return func(*args, **(kwargs or {}))

    def warn(self) -> None:
        """Warn if such a softmax was found."""
        if self.saw_probabilities:
            warn(
                "The network's output is already a probability distribution, and the loss applies another softmax to "
                "it, so confidences can hardly rise. Losses take logits: remove the softmax at the end of the network."
            )


def _are_probabilities(values: Tensor, dim: int) -> bool:
    if values.dim() < 2 or values.shape[dim] < 2 or values.shape[0] < 2:
        return False
    values = values.detach().double()
    return bool((values >= 0).all()) and bool(((values.sum(dim) - 1).abs() < 1e-2).all())


def carried_buffers(
    evaluate: Callable[[Tensors], Tensors], buffers: Tensors, differentiable: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The buffers through which gradient flows from step to step, and those that change without a graph.

    ``evaluate(buffers)`` gives the buffers after a training pass with parameters that require a gradient. The buffers
    in ``differentiable`` are known to carry gradient.
    """
    names = list(differentiable)
    others = [k for k, b in buffers.items() if b.is_floating_point() and k not in names]
    while others:  # a buffer may depend on another one that carries gradient
        after = evaluate({k: b.detach().clone().requires_grad_(k in names) for k, b in buffers.items()})
        carrying = [k for k in others if after[k].requires_grad]
        if not carrying:
            return names, [k for k in others if not torch.equal(after[k], buffers[k])]
        names += carrying
        others = [k for k in others if k not in carrying]
    return names, []


def warn_of_buffers(names: Sequence[str]) -> None:
    """Warn that hypergradients ignore the path through buffers that are updated without a graph."""
    if names:
        warn(
            f"The training pass updates {', '.join(names)} without a graph (under no_grad, or from detached values), "
            "so hypergradients ignore that path. Update the buffers from activations that are not detached."
        )
