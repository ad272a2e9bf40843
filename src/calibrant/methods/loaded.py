"""Data as a user has them, as parts of a task: tensors, arrays, mappings of them, loaders and streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant._inputs import check_labels
from calibrant.data.batch import map_tensors
from calibrant.data.loaders import LoaderStream
from calibrant.data.streams import Stream, TensorStream, as_tensors, is_pair
from calibrant.methods.task import Part, tensors


@dataclass(frozen=True)
class Loaded(Part):
    """The samples of a loader. In memory are only those of its first batch: they show what inputs look like."""

    source: Any = None
    """A loader, or a :class:`calibrant.data.LoaderStream`, whose own settings then hold."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Further arguments of the stream: device, precision, name of the labels, classes."""

    @property
    def loaded(self) -> bool:
        return True

    def __len__(self) -> int:
        return self._stream(0).samples

    def __getitem__(self, rows: Any) -> Part:
        raise TypeError("The samples of a loader cannot be taken by number; read them into memory first: part.read().")

    def __add__(self, other: Part) -> Part:
        raise TypeError("The samples of a loader cannot be joined; read them into memory first: part.read().")

    def to(self, device: torch.device | str | None) -> Part:
        if device is None:
            return self
        first = map_tensors(lambda t: t.to(device), (self.inputs, self.labels))
        settings = tuple((dict(self.settings) | {"device": device}).items())
        return replace(self, inputs=first[0], labels=first[1], settings=settings)

    @property
    def shape(self) -> tuple[Any, ...]:
        return super().shape, id(self.source)

    def batch_size(self, wanted: int | None) -> int | None:
        return len(self.labels)

    def stream(self, *, seed: int = 0, hyper: dict[str, Tensor] | None = None, **_: Any) -> Stream:
        """The loader's batches; their size, order and augmentation are the loader's own."""
        return self._stream(seed, hyper)

    def pieces(self) -> Iterator[tuple[Any, Tensor]]:
        stream = self._stream(0)
        for step in range(stream.batches):
            batch = stream.batch(step)
            stream.release(step + 1)
            yield batch.inputs, batch.targets

    def read(self) -> Part:
        inputs, labels = zip(*self.pieces(), strict=True)
        columns = zip(*(tensors(own) for own in inputs), strict=True)
        try:
            joined = iter([torch.cat(column) for column in columns])
        except RuntimeError as error:
            raise ValueError(
                "The loader's batches must agree in everything but their number of samples to be read into memory, as "
                f"this method needs them (pad all of them to one length, say): {error}"
            ) from error
        return Part(map_tensors(lambda _: next(joined), inputs[0]), torch.cat(labels))

    def _stream(self, seed: int, hyper: dict[str, Tensor] | None = None) -> LoaderStream:
        settings: dict[str, Any] = dict(self.settings)
        loader = self.source
        if isinstance(loader, LoaderStream):
            own = {"seed": loader.seed, "labels": loader.labels, "batches": loader.length}
            settings, seed, loader = settings | own, loader.seed, loader.loader
        return LoaderStream(loader, **({"seed": seed, "hyper": hyper} | settings))


def as_part(data: Any, like: Tensor, labels: str | None = None) -> Part:
    """Samples on a network's device and in its precision; ``like`` is one of its parameters."""
    if isinstance(data, Part):
        return data.to(like.device)
    if isinstance(data, TensorStream):
        inputs = as_tensors(data.inputs, like.device, like.dtype)
        moved = map_tensors(lambda t: t.to(like.device), (data.targets, data.weights))
        return Part(inputs, *moved, augment=data.augment, prepare=data.prepare)
    if is_pair(data):
        return Part(as_tensors(data[0], like.device, like.dtype), torch.as_tensor(data[1], device=like.device))
    loader = data.loader if isinstance(data, LoaderStream) else data
    if isinstance(loader, Iterable) and not isinstance(loader, str | bytes | dict | tuple | Tensor | Iterator):
        settings = (("device", like.device), ("dtype", like.dtype), ("labels", labels))
        empty = Loaded(torch.empty(0), torch.empty(0), source=data, settings=settings)
        first = empty._stream(0).batch(0)
        return replace(empty, inputs=first.inputs, labels=first.targets)
    raise TypeError(
        "Data must be (inputs, labels) as tensors or arrays, or a loader that can be iterated again, such as torch's "
        f"DataLoader; got a {type(data).__name__}."
    )


def checked(part: Part, classes: int) -> Part:
    """The same samples, their labels whole numbers from 0 to C − 1 and as wide as torch's losses need them."""
    labels = check_labels(part.labels, len(part.labels), classes, part.labels.device)
    if isinstance(part, Loaded):
        return replace(part, labels=labels, settings=(*part.settings, ("classes", classes)))
    return replace(part, labels=labels)
