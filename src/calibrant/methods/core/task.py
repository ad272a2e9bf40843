"""Tasks: the input of a method, with the samples of both levels and the model to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from calibrant.data.streams.streams import Stream, mix
from calibrant.methods.core.samples import Samples
from calibrant.models.functional.functional_module import FunctionalModule
from calibrant.models.functional.user_modules import copied

Factory = Callable[[int], nn.Module]
Model = nn.Module | Factory


@dataclass(frozen=True)
class Task:
    """One training problem. ``val`` may be None for methods that do not need it or hold out their own data.

    ``seed`` determines the initial parameters, the order of batches and the folds.
    """

    train: Samples
    val: Samples | None
    n_classes: int
    seed: int = 0
    model: Model | None = None
    """The network: a module, whose parameters are the starting point, or ``callable(seed) -> module``. None: the
    default perceptron of the method."""
    meta: Samples | None = field(default=None, kw_only=True)
    """The part that outer variables are learned from, if ``val`` is reserved for use after training. None: ``val``."""
    head: str | None = field(default=None, kw_only=True)
    """The name of the network's last layer, for methods that need it. None: find it automatically."""
    redraw: bool = field(default=True, kw_only=True)
    """Whether the parameters of a module are drawn again for each of several networks."""
    splits: tuple[tuple[np.ndarray, np.ndarray], ...] | None = field(default=None, kw_only=True)
    """Training and held-out rows of each network, for methods that cross-fit. None: the methods draw the folds."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Tasks of one shape can be trained as one population."""
        held = [None if part is None else part.shape for part in (self.val, self.meta)]
        return self.train.shape, *held, self.n_classes, id(self.model)

    def to(self, device: torch.device | str | None) -> Task:
        """The same task on another device."""
        return self._each(lambda part: part.to(device))

    def need_val(self, who: str) -> Samples:
        """The validation part. If there is none, raise an error that says what needs it."""
        if self.val is None:
            raise ValueError(
                f"{who} needs a validation part in addition to the training part: pass val, or X_val and y_val."
            )
        return self.val

    def need_meta(self, who: str) -> Samples:
        """The part that outer variables are learned from: ``meta``, or ``val`` if there is none."""
        return self.need_val(who) if self.meta is None else self.meta

    def read(self) -> Task:
        """The same task with all samples in memory."""
        return self._each(lambda part: part.read())

    def _each(self, change: Callable[[Samples], Samples]) -> Task:
        """The same task with every part changed."""
        val, meta = (None if part is None else change(part) for part in (self.val, self.meta))
        return replace(self, train=change(self.train), val=val, meta=meta)

    def level(self, name: str, batch_size: int | None = None, **settings: Any) -> Stream:
        """The batches of one level, "train" or "val", in an order of its own; only training inputs are augmented."""
        part = self.train if name == "train" else self.need_val("The outer level")
        seed = mix(self.seed, 10 if name == "train" else 11)
        size = part.batch_size(batch_size)
        return part.stream(batch_size=size, seed=seed, augment=name == "train", **settings)

    def again(self, seed: int) -> Task:
        """The task for one of several networks; each starts from parameters drawn with its own seed."""
        model = Redrawn(self.model) if self.redraw and isinstance(self.model, nn.Module) else self.model
        return replace(self, seed=seed, model=model)


@dataclass(frozen=True)
class Redrawn:
    """A factory of copies of a module, with trainable parameters redrawn as its layers initialise them."""

    module: nn.Module

    def __call__(self, seed: int) -> nn.Module:
        view = FunctionalModule(self.module)
        try:
            params = view.draw(seed)
        except ValueError as error:
            raise ValueError(
                f"The method trains several networks, but the parameters of the given one cannot be redrawn: {error} "
                "Pass a function that builds a network, model=lambda seed: …, or use redraw=False to start every "
                "network from the given one."
            ) from error
        twin = copied(self.module)
        for layer in twin.modules():
            if layer.training and isinstance(layer, _NormBase):
                layer.reset_running_stats()
        return view.export(params, {}, twin)


def pooled_part(task: Task) -> Samples:
    """The training and validation parts together."""
    return task.train if task.val is None else task.train + task.val


def streams(
    task: Task, size: int | None = None, hyper: dict[str, Tensor] | None = None, *, val: bool = True
) -> dict[str, Any]:
    """The data of both levels as ``train`` and ``val``; no ``val`` if there is none."""
    train = {"train": task.level("train", size, hyper=hyper)}
    return train | {"val": task.level("val", hyper=hyper)} if val and task.val is not None else train


def even(tasks: Sequence[Task]) -> list[Task]:
    """The tasks padded to equal numbers of rows, to be trained as one population; see :meth:`Samples.filled`."""
    for name in ("train", "val", "meta"):
        parts = [getattr(task, name) for task in tasks]
        if any(part is None or part.loaded for part in parts) or len({len(part) for part in parts}) < 2:
            continue
        size = max(map(len, parts))
        tasks = [replace(t, **{name: part.filled(size)}) for t, part in zip(tasks, parts, strict=True)]
    return list(tasks)


def total_steps(batches: int, epochs: int | None, default: int = 1200, passes: int = 20) -> int:
    """Inner steps for ``epochs`` passes over the batches of a stream.

    If ``epochs`` is None: ``default`` steps with the full batch; with mini-batches, ``default`` steps or ``passes``
    epochs, whichever is more.
    """
    if epochs is not None:
        return epochs * batches
    return max(default, passes * batches) if batches > 1 else default
