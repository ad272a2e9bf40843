"""Conversion of user data to parts of a task: tensors, arrays, mappings of them, loaders and streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from calibrant._inputs import shareable
from calibrant._labels import check_labels
from calibrant.data.batch import as_dtype, map_tensors, tensors_of
from calibrant.data.items import arguments
from calibrant.data.loaders import LoaderStream
from calibrant.data.streams import Stream, TensorStream, as_array, as_tensors, is_pair
from calibrant.methods.part import Part, joined_inputs
from calibrant.models.functional.network import accepted_names, positional_names
from calibrant.models.functional.user_modules import leading_parameter

_NOT_LOADERS = (str, bytes, Mapping, tuple, Tensor, np.ndarray, Iterator)
"""Iterable types that are not loaders."""
KEPT = 2**27
"""The largest size in bytes of a loader's samples that :meth:`Loaded.remembered` keeps in memory."""


@dataclass(frozen=True)
class Loaded(Part):
    """The samples of a loader. Only the first batch is kept in memory, as an example of the inputs."""

    source: Any = None
    """A loader, or a :class:`calibrant.data.LoaderStream`, whose settings take precedence."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Further arguments of the stream: device, precision, key of the labels, classes."""
    memory: list[tuple[Any, Tensor]] | None = field(default=None, compare=False, repr=False)
    """All batches, once they have been read; None if each pass reads the loader."""

    @property
    def loaded(self) -> bool:
        return True

    def __len__(self) -> int:
        return self._stream(0).samples

    def __getitem__(self, rows: Any) -> Part:
        raise TypeError("The samples of a loader cannot be indexed; read them into memory first: part.read().")

    def __add__(self, other: Part) -> Part:
        raise TypeError("The samples of a loader cannot be joined; read them into memory first: part.read().")

    def to(self, device: torch.device | str | None) -> Part:
        if device is None:
            return self
        first = map_tensors(lambda t: t.to(device), (self.inputs, self.labels))
        settings = tuple((dict(self.settings) | {"device": device}).items())
        memory: list[tuple[Any, Tensor]] | None = None if self.memory is None else []
        return replace(self, inputs=first[0], labels=first[1], settings=settings, memory=memory)

    def remembered(self) -> Part:
        return replace(self, memory=[])

    @property
    def shape(self) -> tuple[Any, ...]:
        return super().shape, id(self.source)

    def batch_size(self, wanted: int | None) -> int | None:
        return len(self.labels)

    def stream(self, *, seed: int = 0, hyper: dict[str, Tensor] | None = None, **_: Any) -> Stream:
        """The loader's batches. The loader determines their size, order and augmentation."""
        return self._stream(seed, hyper)

    def pieces(self) -> Iterator[tuple[Any, Tensor]]:
        if self.memory:
            yield from self.memory
            return
        stream, read, size = self._stream(0), [], 0
        for step in range(stream.batches):
            batch = stream.batch(step)
            stream.release(step + 1)
            if self.memory is not None and size <= KEPT:
                copied = map_tensors(torch.clone, (batch.inputs, batch.targets))  # a loader may reuse its memory
                size += sum(t.nbytes for t in tensors_of(copied))
                read.append(copied)
            yield batch.inputs, batch.targets
        if self.memory is not None:
            self.memory[:] = read if size <= KEPT else []

    def count(self) -> int:
        try:
            return len(self)
        except ValueError:
            return sum(len(labels) for _, labels in self.pieces())

    def read(self) -> Part:
        inputs, labels = zip(*self.pieces(), strict=True)
        try:
            joined = joined_inputs(inputs)
        except RuntimeError as error:
            raise ValueError(
                "This method reads the loader into memory, so its batches must have the same shape except for the "
                f"number of samples. Pad all batches to one length, for example. {error}"
            ) from error
        return Part(joined, torch.cat(labels))

    def _stream(self, seed: int, hyper: dict[str, Tensor] | None = None) -> LoaderStream:
        settings: dict[str, Any] = dict(self.settings)
        loader = self.source
        if isinstance(loader, LoaderStream):
            own = {"seed": loader.seed, "labels": loader.labels, "batches": loader.length}
            settings, seed, loader = settings | own, loader.seed, loader.loader
        return LoaderStream(loader, **({"seed": seed, "hyper": hyper} | settings))


def as_part(data: Any, model: nn.Module, labels: str | None = None, name: str = "train") -> Part:
    """Samples on the network's device and in its precision; ``name`` is the argument named in errors."""
    like = leading_parameter(model)
    if isinstance(data, Part):
        moved = data.to(like.device)
        return replace(moved, inputs=as_dtype(moved.inputs, like.dtype))
    if isinstance(data, TensorStream):
        if data.augment_batch is not None:
            raise ValueError(
                f"{name} must not have augment_batch, because only a method can mix samples; got a stream with it. Use "
                "calibrant.methods.networks.NetworkTraining(mixup=…) as method, or leave it out."
            )
        inputs = as_tensors(data.inputs, like.device, like.dtype)
        targets, weights = map_tensors(lambda t: t.to(like.device), (data.targets, data.sample_weight))
        return Part(inputs, targets, weights, augment=data.augment, prepare=data.prepare)
    if isinstance(data, tuple) and len(data) == 2:
        data = as_array(data[0], f"The inputs of {name}"), as_array(data[1], f"The labels of {name}")
    data = _by_name(data, model)
    if is_pair(data, tuples=True):
        if len(data[1]) == 0:
            raise ValueError(f"{name} must hold at least one sample; got none.")
        inputs = as_tensors(data[0], like.device, like.dtype, f"The inputs of {name}")
        return Part(inputs, _labels(data[1], like.device, name))
    if not is_loader(data):
        raise TypeError(
            f"{name} must be (inputs, labels) as tensors or arrays, or a loader that can be iterated again, such as "
            f"torch's DataLoader; got {_kind(data)}."
        )
    settings = (("device", like.device), ("dtype", like.dtype), ("labels", labels), *arguments_of(model).items())
    empty = Loaded(torch.empty(0, device="cpu"), torch.empty(0, device="cpu"), source=data, settings=settings)
    try:
        first = empty._stream(0).batch(0)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    if not isinstance(first.targets, Tensor):
        raise ValueError(
            f"{name} must yield batches whose labels are a tensor of class indices; got a "
            f"{type(first.targets).__name__}. Encode text labels as 0, 1, 2, … in the data set."
        )
    return replace(empty, inputs=first.inputs, labels=first.targets)


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
    if isinstance(data, LoaderStream):
        return True
    return isinstance(data, Iterable) and not isinstance(data, _NOT_LOADERS)


def arguments_of(model: nn.Module) -> dict[str, Any]:
    """The properties of a network's forward method that a stream needs to name the inputs of a batch."""
    positions, needed = positional_names(model)
    return {"names": accepted_names(model), "positions": positions, "needed": needed}


def _by_name(data: Any, model: nn.Module) -> Any:
    """Replace the tuple of inputs in ``((ids, mask), labels)`` by a mapping; return other data unchanged."""
    several = isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], tuple | list)
    if not several or not all(isinstance(part, Tensor | np.ndarray) for part in (*data[0], data[1])):
        return data
    return arguments(data[0], positional_names(model)[0]), data[1]


def checked(part: Part, n_classes: int, name: str = "train") -> Part:
    """The same samples with labels checked to be integers from 0 to C − 1, in the dtype that torch's losses need."""
    try:
        labels = check_labels(part.labels, len(part.labels), n_classes, part.labels.device)
    except ValueError as error:
        raise ValueError(
            f"The labels of {name} do not fit the network, which has {n_classes} outputs: {error}"
        ) from None
    if isinstance(part, Loaded):
        return replace(part, labels=labels, settings=(*part.settings, ("n_classes", n_classes)))
    return replace(part, labels=labels)
