"""Tasks: the input of a method, with the samples of both levels and the model to train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from calibrant._renamed import renamed_arguments, renamed_attribute
from calibrant.data.batch import map_tensors
from calibrant.data.streams import Augment, AugmentBatch, Prepare, Stream, TensorStream, mix
from calibrant.models.functional import FunctionalModule
from calibrant.models.given import copied

FULL_BATCH = 4096
"""Up to this many rows, a step uses all of them, as in the first paper; above, mini-batches are used."""
BATCH = 512
PIECE = 4096
"""Rows that are prepared at once for prediction."""

Factory = Callable[[int], nn.Module]
Model = nn.Module | Factory


@renamed_arguments(weights="sample_weight")
@dataclass(frozen=True)
class Part:
    """Samples in memory: inputs in the form that the network accepts, class indices, and optional sample weights."""

    inputs: Any
    """A tensor with one row for each sample, or a mapping of such tensors."""
    labels: Tensor
    sample_weight: Tensor | None = None
    augment: Augment | None = field(default=None, kw_only=True)
    """Random augmentation of a training batch, ``(inputs, generator) -> inputs``."""
    prepare: Prepare | None = field(default=None, kw_only=True)
    """A function that converts stored inputs to network inputs, batch by batch: bytes to normalised numbers, say."""

    groups: Tensor | None = field(default=None, kw_only=True)
    """A group number per row. Rows of one group (a patient, a photograph) are never on both sides of a fold."""

    weights = renamed_attribute("weights", "sample_weight")

    def __post_init__(self) -> None:
        for values in tensors(self.inputs):
            if len(values) != len(self.labels):
                raise ValueError(
                    f"inputs and labels must have the same length; got {len(values)} and {len(self.labels)}."
                )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Part:
        own = {name: None if (v := getattr(self, name)) is None else v[rows] for name in ("sample_weight", "groups")}
        return replace(self, inputs=_rows(self.inputs, rows), labels=self.labels[rows], **own)

    def __add__(self, other: Part) -> Part:
        """Both parts joined. Weights are relative within each part; each part counts in proportion to its size."""
        weights = None
        if self.sample_weight is not None or other.sample_weight is not None:
            weights = torch.cat([_mean_one(self), _mean_one(other)])
        groups = None
        if self.groups is not None or other.groups is not None:
            groups = torch.cat([_numbered(self, 0), _numbered(other, len(self))])
        return replace(
            self,
            inputs=_joined([self.inputs, other.inputs]),
            labels=torch.cat([self.labels, other.labels]),
            sample_weight=weights,
            groups=groups,
        )

    def filled(self, size: int) -> Part:
        """The part padded to ``size`` rows. Padding rows are repeated rows with weight 0, which do not change means."""
        rows = cycled(torch.arange(len(self), device=self.labels.device), size)
        weights = _mean_one(self)[rows]
        weights[len(self) :] = 0.0
        return replace(self[rows], sample_weight=weights)

    def to(self, device: torch.device | str | None) -> Part:
        """The same samples on another device."""
        if device is None:
            return self
        own = self.inputs, self.labels, self.sample_weight, self.groups
        inputs, labels, weights, groups = map_tensors(lambda t: t.to(device), own)
        return replace(self, inputs=inputs, labels=labels, sample_weight=weights, groups=groups)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal for parts that are trained together."""
        kinds = tuple((tuple(t.shape), t.dtype) for t in tensors(self.inputs))
        return kinds, self.sample_weight is None, self.augment, self.prepare

    @property
    def loaded(self) -> bool:
        """Whether the samples come from a loader and are not in memory."""
        return False

    def count(self) -> int:
        """The number of samples; a loader of unknown length is read once."""
        return len(self)

    def read(self) -> Part:
        """The samples in memory; a loader is read once."""
        return self

    def batch_size(self, wanted: int | None) -> int | None:
        """Samples per training step: ``wanted`` if given; None (all samples) up to FULL_BATCH; else BATCH."""
        return batch_size(len(self), wanted)

    def stream(
        self,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        index: Tensor | None = None,
        hyper: dict[str, Tensor] | None = None,
        augment: bool = False,
        augment_batch: AugmentBatch | None = None,
        drop_last: bool = False,
    ) -> Stream:
        """Batches of these samples for the engine. ``augment`` applies the part's augmentation, if it has one."""
        return TensorStream(
            self.inputs,
            self.labels,
            sample_weight=self.sample_weight,
            index=index,
            batch_size=batch_size,
            seed=seed,
            hyper=hyper,
            augment=self.augment if augment else None,
            augment_batch=augment_batch,
            prepare=self.prepare,
            drop_last=drop_last,
        )

    def pieces(self) -> Iterator[tuple[Any, Tensor]]:
        """All inputs and labels once, in order, as the network accepts them; in pieces if inputs must be prepared."""
        if self.prepare is None:
            yield self.inputs, self.labels
            return
        for start in range(0, len(self), PIECE):
            rows = slice(start, start + PIECE)
            yield self.prepare(_rows(self.inputs, rows)), self.labels[rows]


@renamed_arguments(classes="n_classes")
@dataclass(frozen=True)
class Task:
    """One training problem. ``val`` may be None for methods that do not need it or hold out their own data."""

    train: Part
    val: Part | None
    n_classes: int
    seed: int = 0
    model: Model | None = None
    """The network: a module, whose parameters are the starting point, or ``callable(seed) -> module``. None: the
    default perceptron of the method."""
    meta: Part | None = field(default=None, kw_only=True)
    """The part that outer variables are learned from, if ``val`` is reserved for use after training. None: ``val``."""
    head: str | None = field(default=None, kw_only=True)
    """The name of the network's last layer, for methods that need it. None: find it automatically."""
    splits: tuple[tuple[np.ndarray, np.ndarray], ...] | None = field(default=None, kw_only=True)
    """Training and held-out rows of each network, for methods that cross-fit. None: the methods draw the folds."""

    classes = renamed_attribute("classes", "n_classes")

    @property
    def shape(self) -> tuple[Any, ...]:
        """Tasks of one shape can be trained as one population."""
        held = [None if part is None else part.shape for part in (self.val, self.meta)]
        return self.train.shape, *held, self.n_classes, id(self.model)

    def to(self, device: torch.device | str | None) -> Task:
        """The same task on another device."""
        held: dict[str, Any] = {name: part and part.to(device) for name, part in self._held.items()}
        return replace(self, train=self.train.to(device), **held)

    @property
    def _held(self) -> dict[str, Part | None]:
        return {"val": self.val, "meta": self.meta}

    def need_val(self, who: str) -> Part:
        """The validation part. If there is none, raise an error that says what needs it."""
        if self.val is None:
            raise ValueError(
                f"{who} needs a validation part in addition to the training part: pass val, or X_val and y_val."
            )
        return self.val

    def read(self) -> Task:
        """The same task with all samples in memory."""
        held: dict[str, Any] = {name: part and part.read() for name, part in self._held.items()}
        return replace(self, train=self.train.read(), **held)

    def again(self, seed: int) -> Task:
        """The task for one of several networks; each starts from parameters drawn with its own seed."""
        model = Redrawn(self.model) if isinstance(self.model, nn.Module) else self.model
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


@dataclass(frozen=True)
class Unchanged:
    """A factory that returns the same module for every seed."""

    module: nn.Module

    def __call__(self, seed: int) -> nn.Module:
        return self.module


def streams(
    task: Task, size: int | None = None, hyper: dict[str, Tensor] | None = None, *, val: bool = True
) -> dict[str, Any]:
    """The data of both levels as ``train`` and ``val``, each in its own order; no ``val`` if there is none."""
    levels = [("train", task.train, size, 10)]
    if val and task.val is not None:
        levels.append(("val", task.val, None, 11))
    return {
        name: part.stream(
            batch_size=part.batch_size(wanted),
            seed=mix(task.seed, purpose),
            hyper=hyper,
            augment=name == "train",
        )
        for name, part, wanted, purpose in levels
    }


def even(tasks: Sequence[Task]) -> list[Task]:
    """The tasks padded to equal numbers of rows, to be trained as one population; see :meth:`Part.filled`."""
    for name in ("train", "val", "meta"):
        parts = [getattr(task, name) for task in tasks]
        if any(part is None or part.loaded for part in parts) or len({len(part) for part in parts}) < 2:
            continue
        size = max(map(len, parts))
        tasks = [replace(t, **{name: part.filled(size)}) for t, part in zip(tasks, parts, strict=True)]
    return list(tasks)


def cycled(rows: Tensor, size: int) -> Tensor:
    """The first ``size`` entries of ``rows``, repeated as often as needed."""
    return rows if len(rows) == size else rows[torch.arange(size, device=rows.device) % len(rows)]


def batch_size(samples: int, wanted: int | None = None) -> int | None:
    """Rows per step: ``wanted`` if given; None (all rows) up to FULL_BATCH; else BATCH."""
    if wanted is not None:
        return wanted
    return None if samples <= FULL_BATCH else BATCH


def total_steps(samples: int, epochs: int | None, size: int | None, default: int, passes: int = 20) -> int:
    """Inner steps for ``epochs`` passes over the data.

    If ``epochs`` is None: ``default`` steps with the full batch; with mini-batches, ``default`` steps or ``passes``
    epochs, whichever is more.
    """
    per_epoch = 1 if size is None else -(-samples // size)
    if epochs is not None:
        return epochs * per_epoch
    return max(default, passes * per_epoch) if per_epoch > 1 else default


def tensors(inputs: Any) -> list[Tensor]:
    """The tensors of an input, in order."""
    found: list[Tensor] = []
    map_tensors(lambda t: found.append(t) or t, inputs)  # type: ignore[func-returns-value]
    return found


def few_inputs(part: Part) -> Any:
    """The first two inputs of a part, in the form that the network accepts."""
    inputs = _rows(part.inputs, slice(2))
    return inputs if part.prepare is None else part.prepare(inputs)


def _rows(inputs: Any, rows: Any) -> Any:
    return map_tensors(lambda t: t[rows], inputs)


def _joined(parts: list[Any]) -> Any:
    """The inputs of several parts, concatenated."""
    columns = zip(*(tensors(part) for part in parts), strict=True)
    joined = iter([torch.cat(list(column)) for column in columns])
    return map_tensors(lambda _: next(joined), parts[0])


def _numbered(part: Part, start: int) -> Tensor:
    """The groups of a part. If it has none, each row is a group with a unique number."""
    if part.groups is not None:
        return part.groups
    return -1 - torch.arange(start, start + len(part), device=part.labels.device)


def _mean_one(part: Part) -> Tensor:
    if part.sample_weight is None:
        return torch.ones(len(part), dtype=torch.float64, device=part.labels.device)
    return part.sample_weight.double() / part.sample_weight.double().mean()
