"""The samples of a task: inputs, labels and how many make a batch; and conversion of a user's data to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn
from torch.utils.data import Dataset

from calibrant.base.inputs import shareable
from calibrant.base.labels import check_labels
from calibrant.data.streams.batch import as_dtype, map_tensors, tensors_of
from calibrant.data.streams.loaders import LoaderStream
from calibrant.data.streams.streams import Augment, Prepare, Stream, TensorStream, as_array, as_tensors, is_pair
from calibrant.models.functional.network import batch_format
from calibrant.models.functional.user_modules import leading_parameter

FULL_BATCH = 4096
"""Up to this many rows, a step uses all of them, as in the first paper; above, mini-batches are used."""
BATCH = 512
PIECE = 4096
"""Rows that are prepared at once for prediction."""


@dataclass(frozen=True)
class Samples:
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
    sparse: csr_array | None = field(default=None, kw_only=True)
    """All columns as linear models see them, if ``inputs`` hold a projection of many columns instead."""
    projected: int = field(default=0, kw_only=True)
    """How many of the last columns of ``inputs`` are a projection."""

    def __post_init__(self) -> None:
        for values in tensors_of(self.inputs):
            if len(values) != len(self.labels):
                raise ValueError(
                    f"inputs and labels must have the same length; got {len(values)} and {len(self.labels)}."
                )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Samples:
        tensors = self.inputs, self.labels, self.sample_weight, self.groups
        inputs, labels, weights, groups = _rows(tensors, rows)
        columns = self.sparse
        if columns is not None:
            columns = columns[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]
        return replace(self, inputs=inputs, labels=labels, sample_weight=weights, groups=groups, sparse=columns)

    def __add__(self, other: Samples) -> Samples:
        """Both parts joined. Weights are relative within each part; each part counts in proportion to its size."""
        weights = None
        if self.sample_weight is not None or other.sample_weight is not None:
            weights = torch.cat([_mean_one(self), _mean_one(other)])
        groups = None
        if self.groups is not None or other.groups is not None:
            groups = torch.cat([_numbered(self, 0), _numbered(other, len(self))])
        return replace(
            self,
            inputs=joined_inputs([self.inputs, other.inputs]),
            labels=torch.cat([self.labels, other.labels]),
            sample_weight=weights,
            groups=groups,
            sparse=None if self.sparse is None else csr_array(vstack([self.sparse, other.sparse], format="csr")),
        )

    @property
    def weights(self) -> Tensor:
        """The sample weights in float64; ones if there are none."""
        if self.sample_weight is None:
            return torch.ones(len(self.labels), dtype=torch.float64, device=self.labels.device)
        return self.sample_weight.double()

    @property
    def without_sparse(self) -> Samples:
        """The same samples for networks, which do not use the sparse columns."""
        return self if self.sparse is None else replace(self, sparse=None)

    def filled(self, size: int) -> Samples:
        """The part padded to ``size`` rows. Padding rows are repeated rows with weight 0, which do not change means."""
        rows = cycled(torch.arange(len(self), device=self.labels.device), size)
        weights = _mean_one(self)[rows]
        weights[len(self) :] = 0.0
        return replace(self[rows], sample_weight=weights)

    def to(self, device: torch.device | str | None) -> Samples:
        """The same samples on another device."""
        if device is None:
            return self
        tensors = self.inputs, self.labels, self.sample_weight, self.groups
        inputs, labels, weights, groups = map_tensors(lambda t: t.to(device), tensors)
        return replace(self, inputs=inputs, labels=labels, sample_weight=weights, groups=groups)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal for parts that are trained together."""
        kinds = tuple((tuple(t.shape), t.dtype) for t in tensors_of(self.inputs))
        return kinds, self.sample_weight is None, self.augment, self.prepare

    @property
    def loaded(self) -> bool:
        """Whether the samples come from a loader and are not in memory."""
        return False

    def count(self) -> int:
        """The number of samples; a loader of unknown length is read once."""
        return len(self)

    def read(self) -> Samples:
        """The samples in memory; a loader is read once."""
        return self

    def batch_size(self, wanted: int | None) -> int | None:
        """Samples per training step: ``wanted`` if given; None (all samples) up to FULL_BATCH; else BATCH."""
        return batch_size(len(self), wanted)

    def stream(self, *, augment: bool = False, **settings: Any) -> Stream:
        """Batches of these samples for the engine. ``augment`` applies the part's augmentation, if it has one.

        ``settings`` are further arguments of :class:`calibrant.data.TensorStream`: ``batch_size``, ``seed``, …
        """
        settings |= {"augment": self.augment if augment else None, "prepare": self.prepare}
        return TensorStream(self.inputs, self.labels, sample_weight=self.sample_weight, **settings)

    def pieces(self) -> Iterator[tuple[Any, Tensor]]:
        """All inputs and labels once, in order, as the network accepts them; in pieces if inputs must be prepared."""
        if self.prepare is None:
            yield self.inputs, self.labels
            return
        for start in range(0, len(self), PIECE):
            rows = slice(start, start + PIECE)
            yield self.prepare(_rows(self.inputs, rows)), self.labels[rows]

    def predicted(self, function: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """``function(inputs)`` for all samples, computed in pieces, and their labels; both on the CPU."""
        outputs, labels = zip(*((function(inputs).cpu(), y.cpu()) for inputs, y in self.pieces()), strict=True)
        return torch.cat(outputs), torch.cat(labels)


def batch_size(samples: int, wanted: int | None = None) -> int | None:
    """Rows per step: ``wanted`` if given; None (all rows) up to FULL_BATCH; else BATCH."""
    if wanted is not None:
        return wanted
    return None if samples <= FULL_BATCH else BATCH


def cycled(rows: Tensor, size: int) -> Tensor:
    """The first ``size`` entries of ``rows``, repeated as often as needed."""
    return rows if len(rows) == size else rows[torch.arange(size, device=rows.device) % len(rows)]


def few_inputs(part: Samples) -> Any:
    """The first two inputs of a part, in the form that the network accepts."""
    inputs = _rows(part.inputs, slice(2))
    return inputs if part.prepare is None else part.prepare(inputs)


def joined_inputs(parts: Sequence[Any]) -> Any:
    """The inputs of several parts or batches, concatenated."""
    columns = zip(*(tensors_of(part) for part in parts), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_tensors(lambda _: next(joined), parts[0])


def _rows(inputs: Any, rows: Any) -> Any:
    return map_tensors(lambda t: t[rows], inputs)


def _numbered(part: Samples, start: int) -> Tensor:
    """The groups of a part. If it has none, each row is a group with a unique number."""
    if part.groups is not None:
        return part.groups
    return -1 - torch.arange(start, start + len(part), device=part.labels.device)


def _mean_one(part: Samples) -> Tensor:
    return part.weights / part.weights.mean()


_NOT_LOADERS = (str, bytes, Mapping, tuple, Tensor, np.ndarray, Iterator)
"""Iterable types that are not loaders."""
KEPT = 2**27
"""The largest size in bytes of a validation loader's samples that are kept in memory."""


@dataclass(frozen=True)
class Loaded(Samples):
    """The samples of a loader. Only the first batch is kept in memory, as an example of the inputs."""

    source: Any = None
    """The loader."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the stream: device, precision, form of the batches, classes."""
    memory: list[tuple[Any, Tensor]] | None = field(default=None, compare=False, repr=False)
    """All batches on the CPU, once they have been read; None if each pass reads the loader."""

    @property
    def loaded(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.stream().samples

    def __getitem__(self, rows: Any) -> Samples:
        raise TypeError("The samples of a loader cannot be indexed; read them into memory first: part.read().")

    def __add__(self, other: Samples) -> Samples:
        raise TypeError("The samples of a loader cannot be joined; read them into memory first: part.read().")

    def to(self, device: torch.device | str | None) -> Samples:
        if device is None:
            return self
        return replace(super().to(device), settings=self.settings | {"device": device}, memory=None)  # type: ignore[call-arg]

    @property
    def shape(self) -> tuple[Any, ...]:
        return super().shape, id(self.source)

    def batch_size(self, wanted: int | None) -> int | None:
        return len(self.labels)

    def stream(self, *, seed: int = 0, hyper: dict[str, Tensor] | None = None, **_: Any) -> LoaderStream:
        """The loader's batches. The loader determines their size, order and augmentation."""
        return LoaderStream(self.source, seed=seed, hyper=hyper, **self.settings)

    def pieces(self) -> Iterator[tuple[Any, Tensor]]:
        if self.memory:
            device = self.labels.device
            for pair in self.memory:
                yield map_tensors(lambda t: t.to(device, non_blocking=True), pair)
            return
        stream, pieces, size = self.stream(), list[tuple[Any, Tensor]](), 0
        for step in range(stream.batches):
            batch = stream.batch(step)
            stream.release(step + 1)
            size += sum(t.nbytes for t in tensors_of((batch.inputs, batch.targets)))
            if self.memory is not None and size <= KEPT:
                pieces.append(map_tensors(_kept, (batch.inputs, batch.targets)))
            yield batch.inputs, batch.targets
        if self.memory is not None and size <= KEPT:
            self.memory[:] = pieces

    def count(self) -> int:
        try:
            return len(self)
        except ValueError:
            return sum(len(labels) for _, labels in self.pieces())

    def read(self) -> Samples:
        inputs, labels = zip(*self.pieces(), strict=True)
        try:
            joined = joined_inputs(inputs)
        except RuntimeError as error:
            raise ValueError(
                "This method reads the loader into memory, so its batches must have the same shape except for the "
                f"number of samples. Pad all batches to one length, for example. {error}"
            ) from error
        return Samples(joined, torch.cat(labels))


def _kept(tensor: Tensor) -> Tensor:
    """A copy on the CPU, since a loader may reuse its memory; from a GPU it is pinned, so that it is back fast."""
    return tensor.cpu().pin_memory() if tensor.is_cuda else tensor.clone()


def as_part(data: Any, model: nn.Module, labels: str | None = None, name: str = "train") -> Samples:
    """Samples on the network's device and in its precision; ``name`` is the argument named in errors."""
    like = leading_parameter(model)
    if isinstance(data, TensorStream):
        if data.augment_batch is not None:
            raise ValueError(
                f"{name} must not have augment_batch, because only a method can mix samples; got a stream with it. Use "
                "calibrant.methods.image_networks.NetworkTraining(mixup=…) as method, or leave it out."
            )
        data = Samples(data.inputs, data.targets, data.sample_weight, augment=data.augment, prepare=data.prepare)
    if isinstance(data, Samples):
        moved = data.to(like.device)
        return replace(moved, inputs=as_dtype(moved.inputs, like.dtype))
    if isinstance(data, tuple) and len(data) == 2:
        data = as_array(data[0], f"The inputs of {name}"), as_array(data[1], f"The labels of {name}")
    if is_pair(data, tuples=True):
        if len(data[1]) == 0:
            raise ValueError(f"{name} must hold at least one sample; got none.")
        several = isinstance(data[0], tuple | list)
        inputs = batch_format(model).arguments(data[0]) if several else data[0]
        inputs = as_tensors(inputs, like.device, like.dtype, f"The inputs of {name}")
        return Samples(inputs, _labels(data[1], like.device, name))
    if not is_loader(data):
        raise TypeError(
            f"{name} must be (inputs, labels) as tensors or arrays, or a loader that can be iterated again, such as "
            f"torch's DataLoader; got {_kind(data)}."
        )
    settings = {"device": like.device, "dtype": like.dtype, "batch_format": batch_format(model, labels)}
    empty = Loaded(torch.empty(0, device="cpu"), torch.empty(0, device="cpu"), source=data, settings=settings)
    try:
        first = empty.stream().batch(0)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    if not isinstance(first.targets, Tensor):
        raise ValueError(
            f"{name} must yield batches whose labels are a tensor of class indices; got a "
            f"{type(first.targets).__name__}. Encode text labels as 0, 1, 2, … in the data set."
        )
    return replace(empty, inputs=first.inputs, labels=first.targets, memory=[] if name == "val" else None)


def _kind(data: Any) -> str:
    """The kind of data that cannot be used, and what to do with a data set."""
    if isinstance(data, Dataset):
        return f"a {type(data).__name__}. Pass DataLoader(dataset, batch_size=128, shuffle=True) instead"
    if isinstance(data, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in data)}"
    return f"a {type(data).__name__}"


def _labels(values: Any, device: torch.device, name: str) -> Tensor:
    if isinstance(values, np.ndarray) and values.dtype.kind in "UOT":
        example = next((repr(value) for value in values.ravel().tolist() if isinstance(value, str)), "objects")
        raise ValueError(
            f"The labels of {name} must be integers from 0 to C − 1; got text such as {example}. Number the classes: "
            "classes, labels = np.unique(labels, return_inverse=True)."
        )
    return torch.as_tensor(shareable(values, f"The labels of {name}"), device=device)


def is_loader(data: Any) -> bool:
    """Whether data is a loader: an object that yields batches and can be iterated again for every epoch."""
    return isinstance(data, Iterable) and not isinstance(data, _NOT_LOADERS)


def checked(part: Samples, n_classes: int, name: str = "train") -> Samples:
    """The same samples with labels checked to be integers from 0 to C − 1, in the dtype that torch's losses need."""
    try:
        labels = check_labels(part.labels, len(part.labels), n_classes, part.labels.device)
    except ValueError as error:
        raise ValueError(
            f"The labels of {name} do not fit the network, which has {n_classes} outputs: {error}"
        ) from None
    if isinstance(part, Loaded):
        return replace(part, labels=labels, settings=part.settings | {"n_classes": n_classes})
    return replace(part, labels=labels)
