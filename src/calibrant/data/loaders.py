"""Batches from a loader: any form of batch, replayed, read ahead, and resumed without reading everything again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from calibrant._inputs import check_labels
from calibrant.data.batch import Batch, Tensors, as_dtype, map_tensors
from calibrant.data.streams import Stream, mix

LABELS = ("labels", "label", "targets", "target", "y")
"""Names under which a mapping's labels are looked for, in this order."""
_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Samplers that draw random numbers only when an epoch begins."""


class LoaderStream(Stream):
    """Batches from a loader (any iterable that can be iterated again for each epoch).

    A batch is ``(inputs, targets)``, ``(inputs, targets, index)``, a mapping with these keys, or a mapping with labels
    and everything that the network takes by name, such as ``{"input_ids": …, "attention_mask": …, "labels": …}``. Then
    ``batch.inputs`` is the mapping without the labels and without ``"index"``. Entries other than tensors are left out.

    Batches are kept until they are released, so that a backward sweep sees the same ones. Each batch is drawn under a
    seed of its own, so that a loader that shuffles or augments with torch's random numbers gives the same batches again
    when a run is resumed. A resumed run skips the epochs that it has seen (where the loader has a length), and within
    an epoch the samples (where torch's ``DataLoader`` runs without workers).

    With ``DataLoader(num_workers=…)`` the next batch is taken from the workers, pinned and sent to the GPU by a thread
    while the present one is used. Without workers batches are read in this thread, because user code that draws random
    numbers cannot run beside training without disturbing its numbers.

    Parameters
    ----------
    loader : iterable of batches
    seed : int
    device, dtype : optional
        Where batches go, and the precision of floating-point inputs.
    hyper : dict of tensors
        Constants handed to the losses.
    labels : str, optional
        The name of the labels in a mapping. Default: the first of "labels", "label", "targets", "target" and "y".
    names : collection of str, optional
        The entries of a mapping that the network takes; others are left out. Default: all tensors.
    positions : sequence of str
        Names of the arguments that the network takes by position, the necessary ones first. They name the inputs of
        batches such as ``(ids, mask, targets)`` and ``((ids, mask), targets)``. Default: batches have one input.
    needed : int
        How many of these arguments the network cannot do without.
    classes : int, optional
        Labels must be whole numbers from 0 to ``classes − 1``; they are checked before they reach a GPU, where a wrong
        one would end the process.
    batches : int, optional
        How many batches make an epoch, for data without a length: without it such data are read once to count them.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        hyper: Tensors | None = None,
        labels: str | None = None,
        names: Collection[str] | None = None,
        positions: Sequence[str] = (),
        needed: int = 1,
        classes: int | None = None,
        batches: int | None = None,
    ) -> None:
        self.loader, self.seed, self.device, self.dtype, self.hyper = loader, seed, device, dtype, dict(hyper or {})
        self.labels, self.names, self.classes, self._given_batches = labels, names, classes, batches
        self.positions, self.needed = positions, needed
        self._kept: dict[int, Batch] = {}
        self._next = self._released = 0
        self._iterator: Iterator[Any] | None = None
        self._ahead: Future[Batch | None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._background = _runs_in_background(loader)

    @property
    def length(self) -> int | None:
        """How many batches make an epoch, where that is known without reading them."""
        return self._given_batches if self._given_batches is not None else _length(self.loader)

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
        """How many samples the loader's data set has."""
        found = _length(getattr(self.loader, "dataset", None))
        if found is None:
            raise ValueError(
                "The loader does not say how many samples it has; give tensors, or a loader whose dataset has a length."
            )
        return found

    @property
    def whole(self) -> Batch:
        """Stands for all samples where each one's weight is read: how many there are, where, in which precision.

        The samples themselves are not in memory. Inputs have no columns and labels are −1, which no loss takes:
        outer variables that would look at them are refused beforehand.
        """
        inputs = torch.empty(self.samples, 0, device=self.device, dtype=self.dtype)
        return Batch(inputs, torch.full((self.samples,), -1, device=self.device), slice(None), hyper=self.hyper)

    def batch(self, step: int) -> Batch:
        if step < self._next and step not in self._kept:
            raise ValueError(f"The batch of step {step} was released; loaders cannot go back. Start the run anew.")
        self._pass_over()
        while self._next <= step:
            self._kept[self._next] = self._take()
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
            raise ValueError("The data is an iterator, which runs only once; give a loader that can be iterated again.")
        self._drop_iterator()
        self._kept.clear()
        self._next = self._released = 0

    def _pass_over(self) -> None:
        """Skip what a resumed run has seen: whole epochs, and samples within one, where that is possible."""
        length = self.length
        if self._next < self._released and length:
            epoch = self._released // length
            if epoch * length > self._next:
                self._drop_iterator()
                self._next = epoch * length
        while self._next < self._released:
            self._draw(skip=True)
            self._next += 1

    def _take(self) -> Batch:
        """The next batch: the one that the thread has ready, or one that is drawn now."""
        try:
            ready = None if self._ahead is None else self._ahead.result()
        except BaseException:
            self._drop_iterator()  # its workers end now, and not when the error is forgotten
            raise
        self._ahead = None
        batch = self._unpack(self._draw()) if ready is None else ready
        if self._background and self._iterator is not None:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="calibrant-loader")
            self._ahead = self._pool.submit(self._following, self._iterator)
        return batch

    def _following(self, iterator: Iterator[Any]) -> Batch | None:
        """In the thread: the next batch of the epoch; None at its end."""
        item = next(iterator, None)
        del iterator  # an error would keep it, and its workers, alive
        return None if item is None else self._unpack(item)

    def _drop_iterator(self) -> None:
        if self._ahead is not None:
            self._ahead.exception()  # wait for the thread: it uses the iterator
        self._ahead = self._iterator = None

    def _draw(self, *, skip: bool = False) -> Any:
        """The next item; with ``skip`` one that is not needed, which is then not read where that is possible."""
        seed = mix(self.seed, self._next, 3)
        with torch.random.fork_rng(devices=[]):
            for _ in range(2):
                # The CPU's generator only: torch.manual_seed would also set those of GPUs, which are not restored here.
                torch.default_generator.manual_seed(seed)
                if self._iterator is None:
                    generator = getattr(self.loader, "generator", None)
                    if isinstance(generator, torch.Generator):
                        generator.manual_seed(seed)
                    self._iterator = iter(self.loader)
                try:
                    if skip and _draws_indices(self.loader, self._iterator):
                        return self._iterator._next_index()  # type: ignore[attr-defined]
                    return next(self._iterator)
                except StopIteration:
                    self._iterator = None
        raise ValueError("The loader gave no batch at all; it must be iterable again for every epoch.")

    def _unpack(self, item: Any) -> Batch:
        inputs, targets, index = unpack(by_name(item, self.positions, self.needed), self.labels, self.names)
        if self.classes is not None:
            targets = check_labels(targets, len(targets), self.classes)
        batch = Batch(as_dtype(inputs, self.dtype), targets, index, hyper=self.hyper)
        return batch if self.device is None else map_tensors(self._moved, batch)

    def _moved(self, tensor: Tensor) -> Tensor:
        device = torch.device(self.device)  # type: ignore[arg-type]
        if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()  # only then does the copy run beside the GPU's work
        return tensor.to(device, non_blocking=True)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the place in the present epoch: a copy begins anew, at the first step."""
        state = self.__dict__ | {"_kept": {}, "_next": 0, "_released": 0}
        return state | {"_iterator": None, "_ahead": None, "_pool": None}


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


def by_name(item: Any, positions: Sequence[str], needed: int = 1) -> Any:
    """An item of a loader with several inputs as ``(mapping, targets, …)``; other items as they are.

    ``((ids, mask), targets)`` names its inputs by ``positions``. So does ``(ids, mask, targets)`` where the network
    needs two inputs; otherwise a third entry is the index of the samples.
    """
    if not isinstance(item, list | tuple) or len(item) < 2:
        return item
    if isinstance(item[0], list | tuple):
        return (named(item[0], positions), *item[1:])
    inputs = item[:-1]
    if len(inputs) > 2 or len(inputs) == needed == 2:
        return named(inputs, positions), item[-1]
    return item


def named(inputs: Sequence[Any], positions: Sequence[str]) -> dict[str, Any]:
    """Several inputs as a mapping, by the names of the arguments that take them."""
    if len(inputs) > len(positions):
        takes = f"takes {len(positions)}: {', '.join(positions)}" if positions else "takes them by no name"
        raise ValueError(
            f"A batch holds {len(inputs)} inputs, but the network {takes}. Give batches (inputs, targets), with one "
            "input for each argument of the network's forward method."
        )
    return dict(zip(positions, inputs, strict=False))


def unpack(item: Any, labels: str | None = None, names: Collection[str] | None = None) -> tuple[Any, Any, Any]:
    """Inputs, targets and index (or None) of one item of a loader; of a mapping's other entries, those in ``names``."""
    if isinstance(item, list | tuple) and len(item) in (2, 3):
        inputs, targets, index = (*item, None)[:3]
        return inputs, targets, index
    if not isinstance(item, Mapping):
        raise ValueError(
            "A batch must be (inputs, targets), (inputs, targets, index), or a mapping with labels; "
            f"got {type(item).__name__}" + (f" of length {len(item)}." if hasattr(item, "__len__") else ".")
        )
    name = labels if labels is not None else next((known for known in LABELS if known in item), None)
    if name is None or name not in item:
        looked = repr(name) if name is not None else " or ".join(map(repr, LABELS))
        raise ValueError(
            f"A batch that is a mapping needs its labels under {looked}; it has {sorted(item)}. Name them: labels='…'."
        )
    if "inputs" in item:
        return item["inputs"], item[name], item.get("index")
    rest = {k: v for k, v in item.items() if isinstance(v, Tensor) and k not in (name, "index")}
    if names is not None:
        rest = {k: v for k, v in rest.items() if k in names}
    if not rest:
        raise ValueError(f"A batch that is a mapping needs tensors beside its labels {name!r}; it has {sorted(item)}.")
    return rest, item[name], item.get("index")


def _length(data: Any) -> int | None:
    """``len(data)``, or None where it has none; a DataLoader over data without a length raises TypeError."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _draws_indices(loader: Any, iterator: Any) -> bool:
    """Whether the next batch's indices can be drawn without reading its samples."""
    single = isinstance(loader, DataLoader) and loader.num_workers == 0
    return single and not isinstance(loader.dataset, IterableDataset) and hasattr(iterator, "_next_index")


def _runs_in_background(loader: Any) -> bool:
    """Whether taking the next batch, within an epoch, draws no random numbers in this process."""
    if not isinstance(loader, DataLoader) or loader.num_workers == 0:
        return False
    if isinstance(loader.dataset, IterableDataset):
        return True
    return type(loader.batch_sampler) in (BatchSampler, type(None)) and type(loader.sampler) in _SAMPLERS
