"""Batches from a loader: any form of batch, replayed and resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from calibrant.base.labels import check_labels
from calibrant.data.streams.batch import Batch, Tensors, as_dtype, map_tensors
from calibrant.data.streams.batch_formats import BatchFormat, check_batch
from calibrant.data.streams.streams import Stream, TensorStream, as_tensors, is_pair, mix


class LoaderStream(Stream):
    """Batches from a loader (any iterable that can be iterated again for each epoch).

    A batch is ``(inputs, targets)``, ``(inputs, targets, index)``, a mapping with these keys, or a mapping with labels
    and the network's arguments by name, such as ``{"input_ids": …, "attention_mask": …, "labels": …}``. In the last
    case ``batch.inputs`` is the mapping without the labels and without ``"index"``. Entries that are not tensors are
    left out. :class:`BatchFormat` describes further forms.

    Batches are kept until they are released, so that a backward sweep sees the same ones. Each batch is drawn with its
    own seed, so that a loader that shuffles or augments with torch's random numbers gives the same batches when a run
    is resumed. A resumed run skips finished epochs (if the loader has a length), and samples within an epoch (if
    torch's ``DataLoader`` runs without workers).

    The workers of ``DataLoader(num_workers=…)`` read ahead. Batches are pinned, so that they are copied to a GPU while
    it works.

    Parameters
    ----------
    loader : iterable of batches
        It is iterated again for each epoch.
    seed : int
        Seed of the random numbers of each batch.
    device, dtype : optional
        Device of the batches, and precision of floating-point inputs.
    hyper : dict of tensors
        Constants for the losses.
    batch_format : BatchFormat
        The name of the labels in a mapping, and the arguments of the network.
    n_classes : int, optional
        Labels must be whole numbers from 0 to ``n_classes − 1``. They are checked before they reach a GPU, where a
        wrong label would end the process.
    batches : int, optional
        Number of batches in an epoch, for data without a length. Without it such data are read once to count them.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        hyper: Tensors | None = None,
        batch_format: BatchFormat = BatchFormat(),  # noqa: B008
        n_classes: int | None = None,
        batches: int | None = None,
    ) -> None:
        self.loader, self.seed, self.dtype = loader, seed, dtype
        self.device = None if device is None else torch.device(device)
        self.hyper = dict(hyper or {}) if self.device is None else map_tensors(self._moved, dict(hyper or {}))
        self.batch_format, self.n_classes, self._given_batches = batch_format, n_classes, batches
        self._kept: dict[int, Batch] = {}
        self._next = self._released = 0
        self._iterator: Iterator[Any] | None = None
        self._table = _table_of(loader)

    @property
    def length(self) -> int | None:
        """Number of batches in an epoch; None if it is unknown without reading them."""
        return self._given_batches if self._given_batches is not None else length_of(self.loader)

    @cached_property
    def batches(self) -> int:
        if self.length is not None:
            return self.length
        if isinstance(self.loader, Iterator):
            return 1
        with torch.random.fork_rng(devices=[]):
            return max(1, sum(1 for _ in self.loader))

    @property
    def samples(self) -> int:
        """Number of samples in the loader's data set."""
        samples = length_of(getattr(self.loader, "dataset", None))
        if samples is None:
            raise ValueError(
                "The loader must have a dataset with a length, to know the number of samples; got none. Give tensors "
                "instead."
            )
        return samples

    def batch(self, step: int) -> Batch:
        if step < self._next and step not in self._kept:
            raise ValueError(f"The batch of step {step} was released, and loaders cannot go back. Start a new run.")
        self._pass_over()
        while self._next <= step:
            self._kept[self._next] = self._unpack(self._draw())
            self._next += 1
        return self._kept[step]

    def release(self, before: int) -> None:
        self._released = max(self._released, before)
        for step in [s for s in self._kept if s < before]:
            del self._kept[step]

    def rewind(self) -> None:
        if self._released == 0:
            return
        if isinstance(self.loader, Iterator):
            raise ValueError("The data must be iterable again for each epoch; got an iterator, which runs only once.")
        self._iterator = None
        self._kept.clear()
        self._next = self._released = 0

    def _pass_over(self) -> None:
        """Skip what a resumed run has seen: whole epochs and, if possible, samples within an epoch."""
        if self._next < self._released and (length := self.length):
            epoch = self._released // length
            if epoch * length > self._next:
                self._iterator = None
                self._next = epoch * length
        while self._next < self._released:
            self._draw(skip=True)
            self._next += 1

    def _draw(self, *, skip: bool = False) -> Any:
        """The next item. With ``skip`` its content is not needed, and it is not read if possible."""
        seed = mix(self.seed, self._next, 3)
        with torch.random.fork_rng(devices=[]):
            for _ in range(2):
                # Only the CPU's generator: torch.manual_seed would also set those of GPUs, which are not restored here.
                torch.default_generator.manual_seed(seed)
                if self._iterator is None:
                    generator = getattr(self.loader, "generator", None)
                    if isinstance(generator, torch.Generator):
                        generator.manual_seed(seed)
                    self._iterator = iter(self.loader)
                try:
                    if skip and _draws_indices(self.loader, self._iterator):
                        return self._iterator._next_index()  # type: ignore[attr-defined]
                    if self._table is not None:
                        return self._table.rows(self._iterator._next_index())  # type: ignore[attr-defined]
                    return next(self._iterator)
                except StopIteration:
                    self._iterator = None
        raise ValueError(
            "The loader gave no batch. Give one that can be iterated again for every epoch. With drop_last=True, it "
            "must hold at least one whole batch."
        )

    def _unpack(self, item: Any) -> Batch:
        inputs, targets, index = self.batch_format.read(item)
        check_batch(inputs, targets)
        if self.n_classes is not None:
            first = self.length is None or self._next < self.length  # tensors are checked once, to save time
            checked = first or not isinstance(targets, Tensor)
            targets = check_labels(targets, len(targets), self.n_classes) if checked else targets.long()
        inputs = as_dtype(inputs, self.dtype)
        if self.device is not None:
            inputs, targets, index = map_tensors(self._moved, (inputs, targets, index))
        return Batch(inputs, targets, index, hyper=self.hyper)

    def _moved(self, tensor: Tensor) -> Tensor:
        device = self.device
        assert device is not None
        if tensor.device == device:
            return tensor
        if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()  # so that the copy runs in parallel to the GPU's work
        return tensor.to(device, non_blocking=True)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the position in the present epoch; a copy starts at the first step."""
        return self.__dict__ | {"_kept": {}, "_next": 0, "_released": 0, "_iterator": None}


def as_stream(
    data: Any,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    hyper: Tensors | None = None,
) -> Stream:
    """A stream from a stream, ``(inputs, targets)`` arrays or tensors, or a loader.

    ``dtype`` is that of the network: inputs in another floating precision (NumPy's default is float64) are converted.
    """
    if isinstance(data, Stream):
        if batch_size is not None or hyper:
            raise ValueError("batch_size and hyper cannot be combined with a Stream; set them on the Stream.")
        return data
    hyper = map_tensors(lambda t: t.to(device), hyper or {})
    if is_pair(data):
        inputs, targets = as_tensors(data[0], device, dtype), as_tensors(data[1], device, None, "labels")
        return TensorStream(inputs, targets, batch_size=batch_size, seed=seed, hyper=hyper)
    # A tuple is a wrong pair, not a loader, although its parts look like batches.
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping | tuple | Tensor | np.ndarray):
        if batch_size is not None:
            raise ValueError("batch_size cannot be combined with a loader; set it on the loader.")
        return LoaderStream(data, seed=seed, device=device, dtype=dtype, hyper=hyper)
    kind = f"tuple of {', '.join(type(d).__name__ for d in data)}" if isinstance(data, tuple) else type(data).__name__
    raise TypeError(f"Data must be two tensors or arrays (inputs, targets), a loader, or a Stream; got a {kind}.")


class Indexed(Dataset):
    """A data set whose items say which sample they are: ``(inputs, targets, index)``, or a mapping with ``"index"``."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Any:
        item = self.dataset[index]
        if isinstance(item, Mapping):
            return {**item, "index": index}
        inputs, targets = item
        return inputs, targets, index

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


def length_of(data: Any) -> int | None:
    """``len(data)``, or None; a DataLoader over data without a length raises TypeError."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _draws_indices(loader: Any, iterator: Any) -> bool:
    """Whether the indices of the next batch can be drawn without reading its samples."""
    single = isinstance(loader, DataLoader) and loader.num_workers == 0
    return single and not isinstance(loader.dataset, IterableDataset) and hasattr(iterator, "_next_index")


class Table(NamedTuple):
    """The tensors of a ``TensorDataset``, and the rows of a ``Subset`` of it."""

    tensors: tuple[Tensor, ...]
    subset: Tensor | None = None

    def rows(self, index: Sequence[int]) -> list[Tensor]:
        """The batch that torch's loader would collect sample by sample."""
        chosen = torch.as_tensor(index)
        chosen = chosen if self.subset is None else self.subset[chosen]
        return [column[chosen.to(column.device)] for column in self.tensors]


def _table_of(loader: Any) -> Table | None:
    """The data of a loader whose batches are rows of tensors, so that a batch can be read at once; None for others."""
    plain = type(loader) is DataLoader and loader.num_workers == 0 and not loader.pin_memory
    if not plain or loader.collate_fn is not default_collate or loader.batch_sampler is None:
        return None
    data: Any = loader.dataset
    subset = None
    if type(data) is Subset:
        data, subset = data.dataset, torch.as_tensor(data.indices)
    return Table(data.tensors, subset) if type(data) is TensorDataset else None
