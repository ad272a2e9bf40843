"""Batches as a pure function of the step number.

``stream.batch(t)`` gives the t-th batch, the same one at every call. A backward sweep replays what the forward pass
saw, a resumed run continues where the first one stopped, and nothing random happens inside a training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.base.inputs import as_rectangular, shareable
from calibrant.data.streams.batch import Batch, Recent, Tensors, as_dtype, map_tensors, tensors_of

Augment = Callable[[Any, torch.Generator], Any]
AugmentBatch = Callable[[Any, Tensor, torch.Generator], tuple[Any, Tensor]]
Prepare = Callable[[Any], Any]


class Stream:
    """Base of all streams."""

    constant = False
    """Whether every step gets the same batch."""

    @property
    def batches(self) -> int:
        """Number of batches, from step 0 on, that show every sample once; 1 if unknown."""
        return 1

    def batch(self, step: int) -> Batch:
        """The batch of step 0, 1, 2, …"""
        raise NotImplementedError

    def release(self, before: int) -> None:
        """Declare that batches of earlier steps are not needed again in this run."""

    def rewind(self) -> None:
        """Begin a new run, which may ask for any step."""


class TensorStream(Stream):
    """Batches from tensors in memory: the full batch, or shuffled mini-batches.

    Parameters
    ----------
    inputs, targets : tensors
        Tensors with one row for each sample; ``inputs`` may be a mapping of such tensors.
    batch_size : int, optional
        None (the default) gives all samples at every step. A single sample that is left over at the end of an epoch
        joins the last batch.
    seed : int
        Determines the order of each epoch, the augmentation, and the network's own random numbers.
    augment : callable ``(inputs, generator) -> inputs``, optional
        Random augmentation of a batch. It must draw all random numbers from the generator, which is on the device of
        the inputs.
    augment_batch : callable ``(inputs, targets, generator) -> (inputs, targets)``, optional
        Random augmentation that also changes the targets (mixup); applied after ``augment``.
    prepare : callable ``inputs -> inputs``, optional
        Converts stored inputs into the network's, batch by batch, with and without augmentation: for example bytes into
        normalised numbers. It must not be random.
    drop_last : bool
        Leave out the last, smaller batch of an epoch.
    hyper : dict of tensors
        Constants for the losses, as ``batch.hyper``; they may differ between the members of a population.
    index : tensor of whole numbers, optional
        Which samples of a larger set these rows are (a fold, a bootstrap sample). Batches carry these numbers, so that
        outer variables with one entry for each sample of the larger set find theirs.
    sample_weight : tensor, optional
        Constant sample weights, scaled here to mean 1 over all rows; ``composed`` and ``averaged`` losses use them.
    """

    def __init__(
        self,
        inputs: Any,
        targets: Tensor,
        *,
        index: Tensor | None = None,
        sample_weight: Tensor | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        augment: Augment | None = None,
        augment_batch: AugmentBatch | None = None,
        prepare: Prepare | None = None,
        drop_last: bool = False,
        hyper: Tensors | None = None,
    ) -> None:
        input_tensors = tensors_of(inputs)
        for values in input_tensors:
            if len(values) != len(targets):
                raise ValueError(
                    f"inputs and targets must be the same samples; got {len(values)} and {len(targets)} rows."
                )
        if len(targets) == 0 or not input_tensors:
            raise ValueError("inputs must have at least one row; got none.")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, or None for the full batch; got {batch_size}.")
        self.inputs, self.targets, self.seed = inputs, targets, seed
        self.augment, self.augment_batch, self.prepare = augment, augment_batch, prepare
        self.size, self.device = len(targets), input_tensors[0].device
        self.batch_size = None if batch_size is None or batch_size >= self.size else batch_size
        per_epoch = 1.0 if self.batch_size is None else self.size / self.batch_size
        # A last batch of one sample would break BatchNorm, so the sample joins the batch before it.
        self._joins_last = (
            not drop_last and self.batch_size not in (None, 1) and self.size % (self.batch_size or 1) == 1
        )
        whole_only = drop_last or self._joins_last
        self.steps_per_epoch = max(1, math.floor(per_epoch) if whole_only else math.ceil(per_epoch))
        self.constant = self.batch_size is None and augment is None and augment_batch is None
        self.hyper = dict(hyper or {})
        self.index = None if index is None else _checked_index(index, targets, self.device)
        self.sample_weight = None if sample_weight is None else _normalised(sample_weight, targets, input_tensors[0])
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))
        self._recent = Recent(self.draw)

    @property
    def batches(self) -> int:
        return self.steps_per_epoch

    @cached_property
    def whole(self) -> Batch:
        """All samples, in order and without augmentation."""
        return self._prepared(self._stored(None))

    def batch(self, step: int) -> Batch:
        return self.whole if self.constant else self._recent(step)

    def _stored(self, rows: Tensor | None) -> Batch:
        """Some rows as they are stored; None: all of them."""
        if rows is None:
            names = slice(None) if self.index is None else self.index
            return Batch(self.inputs, self.targets, names, hyper=self.hyper, sample_weight=self.sample_weight)
        names = rows if self.index is None else self.index[rows]
        weights = None if self.sample_weight is None else self.sample_weight[rows]
        inputs = map_tensors(lambda t: t[rows], self.inputs)
        return Batch(inputs, self.targets[rows], names, hyper=self.hyper, sample_weight=weights)

    def _prepared(self, batch: Batch) -> Batch:
        return batch if self.prepare is None else batch._replace(inputs=self.prepare(batch.inputs))

    def draw(self, step: int) -> Batch:
        """Draw the batch of a step again; :meth:`batch` remembers the last few."""
        rows = None
        if self.batch_size is not None:
            epoch, position = divmod(step, self.steps_per_epoch)
            if self._order[0] != epoch:
                self._order = epoch, self.order(epoch).to(self.device)
            rows = self._order[1][self.rows_of(position)]
        batch = self._stored(rows)
        if self.augment is not None:
            generator = torch.Generator(self.device).manual_seed(mix(self.seed, step, 2))
            batch = batch._replace(inputs=self.augment(batch.inputs, generator))
        if self.augment_batch is not None:
            generator = torch.Generator(self.device).manual_seed(mix(self.seed, step, 4))
            inputs, targets = self.augment_batch(batch.inputs, batch.targets, generator)
            batch = batch._replace(inputs=inputs, targets=targets)
        return self._prepared(batch)

    def rows_of(self, position: int) -> slice:
        """The part of an epoch's order that belongs to batch number ``position``."""
        size = self.size if self.batch_size is None else self.batch_size
        last = self._joins_last and position == self.steps_per_epoch - 1
        return slice(position * size, self.size if last else (position + 1) * size)

    def order(self, epoch: int) -> Tensor:
        """The order of the rows in an epoch of mini-batches (on the CPU, so that devices agree)."""
        return torch.randperm(
            self.size, generator=torch.Generator().manual_seed(mix(self.seed, epoch, 1)), device="cpu"
        )


def is_pair(data: Any, *, tuples: bool = False) -> bool:
    """Whether data is ``(inputs, targets)`` in memory; inputs may be a mapping, or with ``tuples`` several tensors."""
    if not (isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], Tensor | np.ndarray)):
        return False
    parts = list(data[0].values()) if isinstance(data[0], Mapping) else [data[0]]
    if tuples and isinstance(data[0], tuple | list):
        parts = list(data[0])
    return len(parts) > 0 and all(isinstance(part, Tensor | np.ndarray) for part in parts)


def as_tensors(inputs: Any, device: torch.device | str | None, dtype: torch.dtype | None, name: str = "inputs") -> Any:
    """Inputs as tensors on a device, floating-point ones in a precision."""
    if isinstance(inputs, Mapping):
        return {key: as_tensors(values, device, dtype, name) for key, values in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(as_tensors(values, device, dtype, name) for values in inputs)
    return as_dtype(torch.as_tensor(shareable(inputs, name), device=device), dtype)


def as_array(values: Any, name: str = "inputs") -> Any:
    """Data frames, series and lists of numbers or texts as arrays; everything else unchanged."""
    if hasattr(values, "to_numpy"):
        return np.array(values.to_numpy())  # a copy that torch can write to
    first = values
    while isinstance(first, list) and first:
        first = first[0]
    is_list = isinstance(values, list) and isinstance(first, int | float | str)
    return as_rectangular(values, name) if is_list else values


def mix(*numbers: int) -> int:
    """One seed from several numbers, spread over 63 bits so that neighbours do not correlate."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _checked_index(index: Tensor, targets: Tensor, device: torch.device) -> Tensor:
    if index.dtype != torch.long or index.shape != (len(targets),):
        raise ValueError(
            f"index must hold one whole number (torch.long) for each of the {len(targets)} rows; "
            f"got {index.dtype} of shape {tuple(index.shape)}."
        )
    return index.to(device)


def _normalised(weights: Tensor, targets: Tensor, like: Tensor) -> Tensor:
    """Weights of mean 1 in the precision of the inputs, so that learning rates and penalties keep their meaning."""
    if weights.shape != (len(targets),):
        raise ValueError(
            f"sample_weight must hold one number for each of the {len(targets)} rows; got shape {tuple(weights.shape)}."
        )
    if not bool((weights >= 0).all() & weights.isfinite().all() & (weights > 0).any()):
        raise ValueError(
            "sample_weight must be finite and not negative, and positive for some rows; got values from "
            f"{weights.min():g} to {weights.max():g}."
        )
    weights = weights.to(like.device, like.dtype if like.is_floating_point() else torch.get_default_dtype())
    return weights / weights.mean()
