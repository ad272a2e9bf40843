"""Methods on a network of one's own: any module, tensors or loaders, the same compositions and the same loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._inputs import check_labels
from calibrant.bilevel import OUTER_LOSSES, Bilevel, Callback, History, Solution
from calibrant.bilevel.tracing import Compiler
from calibrant.data.batch import Batch, as_dtype
from calibrant.data.streams import LoaderStream
from calibrant.methods.bo4sc import BO4SC
from calibrant.methods.standard import Standard
from calibrant.methods.task import Fitted, Mixture, Part, Task, streams


@dataclass(frozen=True)
class Trained(Fitted):
    """A trained network. ``extras`` holds what its method learned: ``sample_weights``, ``history``, ``l2`` …"""

    module: nn.Module
    """A copy of the model that was given, with the trained parameters and buffers, in evaluation mode."""
    solution: Solution
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = field(default=None, init=False)
    """Always None: where the training of one network breaks down, ``fit`` raises."""

    @property
    def sample_weights(self) -> Tensor | None:
        """The learned weight of each training sample; None for methods that learn none."""
        return self.extras.get("sample_weights")

    def probs(self, inputs: Any) -> Tensor:
        """P(class | input), (n, C), float64 on the CPU."""
        return Mixture((self.solution,)).probs(torch.as_tensor(inputs))

    def predict(self, inputs: Any) -> Tensor:
        """The most probable class of each input."""
        return self.probs(inputs).argmax(1)

    def confidence(self, inputs: Any) -> Tensor:
        """The probability of that class."""
        return self.probs(inputs).amax(1)


def fit(
    model: nn.Module,
    train: Any,
    val: Any = None,
    *,
    method: BO4SC | Standard | None = None,
    callbacks: Sequence[Callback] = (),
    seed: int = 0,
    compile: Compiler | None = None,
) -> Trained:
    """Train a network of one's own with a method of :mod:`calibrant.methods`.

    Parameters
    ----------
    model : nn.Module
        Inputs to logits, (n, C). Copied; its present parameters are the start, and their device is where training runs.
    train, val : ``(inputs, labels)`` as tensors or arrays, or a loader
        Labels are whole numbers from 0 to C − 1. A loader has a length, and can be iterated again. For weights of
        single samples its batches must say which samples they hold: ``DataLoader(calibrant.data.Indexed(dataset), …)``.
        ``val`` is the outer level's data; ``Standard`` needs it for ``patience`` only.
    method : BO4SC or Standard
        Default ``BO4SC()``. Its ``hidden`` is not used, nor its ``batch_size`` where loaders are given.
    callbacks : sequence of :class:`calibrant.bilevel.Callback`
    seed : int
        Order of batches, dropout, augmentation.
    compile : {None, "trace", "inductor"}
        See :func:`calibrant.bilevel.solve`. ``"trace"`` is faster for small networks and long runs.

    Examples
    --------
    >>> import torch, calibrant
    >>> x = torch.randn(120, 2); y = (x[:, 0] > 0).long()
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> method = calibrant.methods.BO4SC(steps=5, epochs=20)
    >>> result = calibrant.fit(net, (x[:80], y[:80]), (x[80:], y[80:]), method=method)
    >>> result.sample_weights.shape, result.probs(x).shape
    (torch.Size([80]), torch.Size([120, 2]))
    """
    method = BO4SC() if method is None else method
    if not isinstance(method, BO4SC | Standard):
        raise TypeError(
            f"fit trains one network, by BO4SC(...) or Standard(...); got {type(method).__name__}, which makes its "
            "own networks. Use method.fit(task), or the estimators."
        )
    like = next(model.parameters())
    train, val = _part(train, like), None if val is None else _part(val, like)
    classes = _classes(model, train.inputs)
    task = Task(_checked(train, classes), None if val is None else _checked(val, classes), classes, seed)
    solution, extras = (_bilevel if isinstance(method, BO4SC) else _plain)(model, method, task, callbacks, compile)  # type: ignore[arg-type]
    return Trained(solution.export(copy.deepcopy(model)).eval(), solution, extras)


def _bilevel(
    model: nn.Module, method: BO4SC, task: Task, callbacks: Sequence[Callback], compile: Compiler | None
) -> tuple[Solution, dict[str, Any]]:
    task.need_val("BO4SC")
    if isinstance(task.train, Loaded) and method.weights in ("neighbours", "network"):
        raise ValueError(f"weights={method.weights!r} looks at all training inputs: give tensors instead of a loader.")
    hyper = method.constants(method, task)
    problem = Bilevel(
        model,
        method.outer_variable(model, task),
        **streams(task, method.batch_size, hyper),
        outer_loss=OUTER_LOSSES[method.outer_loss](),
        seed=task.seed,
    )
    (fitted,) = method.fit_problems([method], [task], [problem], [hyper], callbacks, compile)
    return fitted.networks[0], fitted.extras


def _plain(
    model: nn.Module, method: Standard, task: Task, callbacks: Sequence[Callback], compile: Compiler | None
) -> tuple[Solution, dict[str, Any]]:
    if method.patience is not None:
        task.need_val("Early stopping (patience)")
    history = History()
    problem = Bilevel(model, **streams(task, method.batch_size), inner_loss=method.inner_loss(), seed=task.seed)
    (solution,) = method.fit_problems([method], [problem], [history, *callbacks], compile)
    return solution, {"history": {"inner_loss": history["inner_loss"]}}


@dataclass(frozen=True)
class Loaded(Part):
    """The samples of a loader, as far as it shows them: its first batch, and how many there are."""

    loader: Any = None
    classes: int = 0

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def stream(self, *, seed: int = 0, hyper: dict[str, Tensor] | None = None, **_: Any) -> LoaderStream:  # type: ignore[override]
        """The loader's batches, for the engine."""
        like = self.inputs
        return LoadedStream(
            self.loader, classes=self.classes, seed=seed, device=like.device, dtype=like.dtype, hyper=hyper
        )


class LoadedStream(LoaderStream):
    """A loader's batches, every label checked: on a GPU, a label beyond the classes would end the whole process."""

    def __init__(self, loader: Any, *, classes: int, **settings: Any) -> None:
        super().__init__(loader, **settings)
        self.classes = classes

    @property
    def whole(self) -> Batch:
        """Stands for all samples where each one's weight is read: how many there are, where, in which precision.

        The samples themselves are nowhere in memory. Inputs have no columns and labels are −1, which no loss takes:
        outer variables that would look at them are refused beforehand.
        """
        rows = len(self.loader.dataset)  # type: ignore[attr-defined]
        inputs = torch.empty(rows, 0, device=self.device, dtype=self.dtype)
        return Batch(inputs, torch.full((rows,), -1, device=self.device), slice(None))

    def _unpack(self, item: Any) -> Batch:
        batch = super()._unpack(item)
        labels = check_labels(batch.targets, len(batch.targets), self.classes, torch.device(self.device or "cpu"))
        return batch._replace(targets=labels)


def _part(data: Any, like: Tensor) -> Part:
    """Samples on the network's device and in its precision."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(d, Tensor | np.ndarray) for d in data):
        inputs, labels = (torch.as_tensor(d, device=like.device) for d in data)
        return Part(as_dtype(inputs, like.dtype), labels)
    if hasattr(data, "dataset") and hasattr(data, "__len__"):
        first = LoaderStream(data, device=like.device, dtype=like.dtype).batch(0)
        return Loaded(first.inputs, first.targets, loader=data)
    raise TypeError(
        "Data must be (inputs, labels) as tensors or arrays, or a loader with a length and a dataset, such as torch's "
        f"DataLoader; got a {type(data).__name__}."
    )


def _checked(part: Part, classes: int) -> Part:
    """The same samples, their labels whole numbers in 0..C−1 and as wide as torch's losses want them."""
    labels = check_labels(part.labels, len(part.inputs), classes, part.inputs.device)
    return replace(part, labels=labels, **({"classes": classes} if isinstance(part, Loaded) else {}))  # type: ignore[arg-type]


def _classes(model: nn.Module, inputs: Tensor) -> int:
    """How many logits the network gives. A copy is asked, so that nothing in the user's own changes."""
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(inputs[:2])
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"The model must give one row of logits a sample, one for each of two or more classes; got {got}."
        )
    return logits.shape[1]
