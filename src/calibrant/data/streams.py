"""Batches as a pure function of the step number.

``stream.batch(t)`` gives the t-th batch, the same one however often it is asked for: a backward sweep replays what the
forward pass saw, a resumed run goes on where the first one stopped, and nothing random happens inside a training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from calibrant.data.batch import Batch, Tensors, as_dtype, map_tensors

Augment = Callable[[Tensor, torch.Generator], Tensor]
AugmentBatch = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


class Stream:
    """Base of all streams."""

    constant = False
    """Whether every step gets the same batch."""

    @property
    def batches(self) -> int:
        """How many batches, from step 0 on, show every sample once; 1 where that is not known."""
        return 1

    def batch(self, step: int) -> Batch:
        """The batch of step 0, 1, 2, …"""
        raise NotImplementedError

    def release(self, before: int) -> None:
        """Batches of earlier steps will not be asked for again in this run."""

    def rewind(self) -> None:
        """A new run begins, and may ask for any step."""


class TensorStream(Stream):
    """Batches from tensors in memory: the full batch, or shuffled mini-batches.

    Parameters
    ----------
    inputs, targets : tensors with one row a sample
    batch_size : int, optional
        None (the default) gives all samples at every step. A single sample that is left over at the end of an epoch
        joins the last batch.
    seed : int
        Decides the order of each epoch, the augmentation, and the network's own random numbers.
    augment : callable ``(inputs, generator) -> inputs``, optional
        Random augmentation; it must take all its random numbers from the generator (a CPU one).
    augment_batch : callable ``(inputs, targets, generator) -> (inputs, targets)``, optional
        Random augmentation that also changes the targets (mixup); it comes after ``augment``.
    drop_last : bool
        Leave out the last, smaller batch of an epoch.
    hyper : dict of tensors
        Constants handed to the losses as ``batch.hyper``; they may differ between the members of a population.
    index : tensor of whole numbers, optional
        Which samples of a larger set these rows are (a fold, a bootstrap sample): batches carry these numbers, so that
        outer variables with one entry for each sample of the larger set find theirs.
    weights : tensor, optional
        Constant sample weights, scaled here to mean 1 over all rows; ``composed`` and ``averaged`` losses use them.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        index: Tensor | None = None,
        weights: Tensor | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        augment: Augment | None = None,
        augment_batch: AugmentBatch | None = None,
        drop_last: bool = False,
        hyper: Tensors | None = None,
    ) -> None:
        if len(inputs) != len(targets):
            raise ValueError(
                f"inputs has {len(inputs)} rows and targets {len(targets)}; they must be the same samples."
            )
        if len(inputs) == 0:
            raise ValueError("There are no samples to draw batches from.")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, or None for the full batch; got {batch_size}.")
        self.inputs, self.targets, self.seed, self.augment = inputs, targets, seed, augment
        self.augment_batch = augment_batch
        self.size = len(inputs)
        self.batch_size = None if batch_size is None or batch_size >= self.size else batch_size
        per_epoch = 1.0 if self.batch_size is None else self.size / self.batch_size
        # A last batch of one sample would break BatchNorm, so that sample joins the batch before it.
        self._joins_last = (
            not drop_last and self.batch_size not in (None, 1) and self.size % (self.batch_size or 1) == 1
        )
        whole_only = drop_last or self._joins_last
        self.steps_per_epoch = max(1, math.floor(per_epoch) if whole_only else math.ceil(per_epoch))
        self.constant = self.batch_size is None and augment is None and augment_batch is None
        self.hyper = dict(hyper or {})
        self.index = None if index is None else _checked_index(index, inputs)
        self.weights = None if weights is None else _normalised(weights, inputs)
        names = slice(None) if self.index is None else self.index
        self.whole = Batch(inputs, targets, names, hyper=self.hyper, weights=self.weights)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def batches(self) -> int:
        return self.steps_per_epoch

    def batch(self, step: int) -> Batch:
        if self.batch_size is None:
            batch = self.whole
        else:
            epoch, position = divmod(step, self.steps_per_epoch)
            if self._order[0] != epoch:
                self._order = epoch, self.order(epoch).to(self.inputs.device)
            rows = self._order[1][self.rows_of(position)]
            names = rows if self.index is None else self.index[rows]
            weights = None if self.weights is None else self.weights[rows]
            batch = Batch(self.inputs[rows], self.targets[rows], names, hyper=self.hyper, weights=weights)
        if self.augment is not None:
            generator = torch.Generator().manual_seed(mix(self.seed, step, 2))
            batch = batch._replace(inputs=self.augment(batch.inputs, generator))
        if self.augment_batch is not None:
            generator = torch.Generator().manual_seed(mix(self.seed, step, 4))
            inputs, targets = self.augment_batch(batch.inputs, batch.targets, generator)
            batch = batch._replace(inputs=inputs, targets=targets)
        return batch

    def rows_of(self, position: int) -> slice:
        """Which part of an epoch's order belongs to its batch number ``position``."""
        size = self.size if self.batch_size is None else self.batch_size
        last = self._joins_last and position == self.steps_per_epoch - 1
        return slice(position * size, self.size if last else (position + 1) * size)

    def order(self, epoch: int) -> Tensor:
        """The order of the rows in an epoch of mini-batches (on the CPU, so that devices agree)."""
        return torch.randperm(self.size, generator=torch.Generator().manual_seed(mix(self.seed, epoch, 1)))


class LoaderStream(Stream):
    """Batches from a loader (any iterable that can be iterated again for each epoch).

    A batch is ``(inputs, targets)``, ``(inputs, targets, index)`` or a mapping with these keys. Batches are kept until
    they are released, so that a backward sweep sees the same ones. Each batch is drawn under a seed of its own, so that
    a loader that shuffles or augments with torch's random numbers gives the same batches again when a run is resumed.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        hyper: Tensors | None = None,
    ) -> None:
        self.loader, self.seed, self.device, self.dtype, self.hyper = loader, seed, device, dtype, dict(hyper or {})
        self._kept: dict[int, Batch] = {}
        self._next = self._released = 0
        self._iterator: Iterator[Any] | None = None

    @property
    def batches(self) -> int:
        return len(self.loader) if isinstance(self.loader, Sized) else 1

    def batch(self, step: int) -> Batch:
        if step < self._next and step not in self._kept:
            raise ValueError(f"The batch of step {step} was released; loaders cannot go back. Start the run anew.")
        while self._next <= step:
            item = self._draw()
            if self._next >= self._released:  # a resumed run passes over the batches that it has seen
                self._kept[self._next] = self._unpack(item)
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
        self._kept.clear()
        self._next, self._released, self._iterator = 0, 0, None

    def _draw(self) -> Any:
        seed = mix(self.seed, self._next, 3)
        with torch.random.fork_rng(devices=[]):
            # The CPU's generator only: torch.manual_seed would also set those of GPUs, which are not restored here.
            torch.default_generator.manual_seed(seed)
            for _ in range(2):
                if self._iterator is None:
                    generator = getattr(self.loader, "generator", None)
                    if isinstance(generator, torch.Generator):
                        generator.manual_seed(seed)
                    self._iterator = iter(self.loader)
                try:
                    return next(self._iterator)
                except StopIteration:
                    self._iterator = None
        raise ValueError("The loader gave no batch at all; it must be iterable again for every epoch.")

    def _unpack(self, item: Any) -> Batch:
        if isinstance(item, Mapping):
            missing = {"inputs", "targets"} - set(item)
            if missing:
                raise ValueError(f"A batch that is a mapping needs 'inputs' and 'targets'; it has {sorted(item)}.")
            parts = (item["inputs"], item["targets"], item.get("index"))
        elif isinstance(item, list | tuple) and len(item) in (2, 3):
            parts = (*item, None)[:3]
        else:
            raise ValueError(
                "A batch must be (inputs, targets), (inputs, targets, index), or a mapping with these keys; "
                f"got {type(item).__name__}" + (f" of length {len(item)}." if hasattr(item, "__len__") else ".")
            )
        batch = Batch(as_dtype(parts[0], self.dtype), *parts[1:], hyper=self.hyper)
        return map_tensors(lambda t: t.to(self.device, non_blocking=True), batch) if self.device is not None else batch


class Indexed(Dataset):
    """A data set whose items say which sample they are: ``(inputs, targets, index)``."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[Any, Any, int]:
        inputs, targets = self.dataset[index]
        return inputs, targets, index

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


def as_stream(
    data: Any,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    hyper: Tensors | None = None,
) -> Stream:
    """A stream from whatever the user has: a stream, ``(inputs, targets)`` arrays or tensors, or a loader.

    ``dtype`` is that of the network: inputs in another floating precision (NumPy's default is float64) are converted.
    """
    if isinstance(data, Stream):
        if batch_size is not None or hyper:
            raise ValueError("batch_size and hyper belong to the Stream itself; give them where it is made.")
        return data
    hyper = map_tensors(lambda t: t.to(device), hyper or {})
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(d, Tensor | np.ndarray) for d in data):
        inputs, targets = (torch.as_tensor(part, device=device) for part in data)
        return TensorStream(as_dtype(inputs, dtype), targets, batch_size=batch_size, seed=seed, hyper=hyper)
    # A tuple is a pair gone wrong, not a loader: its parts would pass for batches.
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping | tuple | Tensor | np.ndarray):
        if batch_size is not None:
            raise ValueError("batch_size is the loader's own affair; set it there.")
        return LoaderStream(data, seed=seed, device=device, dtype=dtype, hyper=hyper)
    kind = f"tuple of {', '.join(type(d).__name__ for d in data)}" if isinstance(data, tuple) else type(data).__name__
    raise TypeError(f"Data must be two tensors or arrays (inputs, targets), a loader, or a Stream; got a {kind}.")


def mix(*numbers: int) -> int:
    """One seed out of several numbers, spread over 63 bits so that neighbours do not correlate."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _checked_index(index: Tensor, inputs: Tensor) -> Tensor:
    if index.dtype != torch.long or index.shape != (len(inputs),):
        raise ValueError(
            f"index must hold one whole number (torch.long) for each of the {len(inputs)} rows; "
            f"got {index.dtype} of shape {tuple(index.shape)}."
        )
    return index.to(inputs.device)


def _normalised(weights: Tensor, inputs: Tensor) -> Tensor:
    """Weights of mean 1 in the inputs' precision, so that learning rates and penalties keep their meaning."""
    if weights.shape != (len(inputs),):
        raise ValueError(
            f"weights must hold one number for each of the {len(inputs)} rows; got shape {tuple(weights.shape)}."
        )
    if not bool((weights >= 0).all() & weights.isfinite().all() & (weights > 0).any()):
        raise ValueError("weights must be finite and not negative, and some must be positive.")
    weights = weights.to(inputs.device, inputs.dtype if inputs.is_floating_point() else torch.get_default_dtype())
    return weights / weights.mean()
