"""Parts of a task: samples in memory, and how many of them make a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from calibrant.data.batch import map_tensors, tensors_of
from calibrant.data.streams import Augment, AugmentBatch, Prepare, Stream, TensorStream

FULL_BATCH = 4096
"""Up to this many rows, a step uses all of them, as in the first paper; above, mini-batches are used."""
BATCH = 512
PIECE = 4096
"""Rows that are prepared at once for prediction."""


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

    def __getitem__(self, rows: Any) -> Part:
        weights, groups = (None if v is None else v[rows] for v in (self.sample_weight, self.groups))
        columns = self.sparse
        if columns is not None:
            columns = columns[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]
        return replace(
            self,
            inputs=_rows(self.inputs, rows),
            labels=self.labels[rows],
            sample_weight=weights,
            groups=groups,
            sparse=columns,
        )

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
            inputs=joined_inputs([self.inputs, other.inputs]),
            labels=torch.cat([self.labels, other.labels]),
            sample_weight=weights,
            groups=groups,
            sparse=None if self.sparse is None else csr_array(vstack([self.sparse, other.sparse], format="csr")),
        )

    @property
    def without_sparse(self) -> Part:
        """The same samples for networks, which do not use the sparse columns."""
        return self if self.sparse is None else replace(self, sparse=None)

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
        kinds = tuple((tuple(t.shape), t.dtype) for t in tensors_of(self.inputs))
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

    def remembered(self) -> Part:
        """The same samples; a loader with a small data set is then read only once, however often it is passed over."""
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

    def predicted(self, function: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """``function(inputs)`` for all samples, computed in pieces, and their labels; both on the CPU."""
        outputs, labels = zip(*((function(inputs).cpu(), own.cpu()) for inputs, own in self.pieces()), strict=True)
        return torch.cat(outputs), torch.cat(labels)


def batch_size(samples: int, wanted: int | None = None) -> int | None:
    """Rows per step: ``wanted`` if given; None (all rows) up to FULL_BATCH; else BATCH."""
    if wanted is not None:
        return wanted
    return None if samples <= FULL_BATCH else BATCH


def cycled(rows: Tensor, size: int) -> Tensor:
    """The first ``size`` entries of ``rows``, repeated as often as needed."""
    return rows if len(rows) == size else rows[torch.arange(size, device=rows.device) % len(rows)]


def few_inputs(part: Part) -> Any:
    """The first two inputs of a part, in the form that the network accepts."""
    inputs = _rows(part.inputs, slice(2))
    return inputs if part.prepare is None else part.prepare(inputs)


def entries(part: Part, who: str) -> int:
    """The number of values per input. Raise an error unless the inputs are one tensor in memory."""
    inputs = part.inputs
    if part.loaded:
        raise ValueError(f"{who} needs all training inputs in memory; give tensors instead of a loader.")
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise ValueError(
            f"{who} needs numeric inputs in one tensor; got {getattr(inputs, 'dtype', type(inputs).__name__)}."
        )
    return inputs[0].numel()


def joined_inputs(parts: Sequence[Any]) -> Any:
    """The inputs of several parts or batches, concatenated."""
    columns = zip(*(tensors_of(part) for part in parts), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_tensors(lambda _: next(joined), parts[0])


def _rows(inputs: Any, rows: Any) -> Any:
    return map_tensors(lambda t: t[rows], inputs)


def _numbered(part: Part, start: int) -> Tensor:
    """The groups of a part. If it has none, each row is a group with a unique number."""
    if part.groups is not None:
        return part.groups
    return -1 - torch.arange(start, start + len(part), device=part.labels.device)


def _mean_one(part: Part) -> Tensor:
    if part.sample_weight is None:
        return torch.ones(len(part), dtype=torch.float64, device=part.labels.device)
    return part.sample_weight.double() / part.sample_weight.double().mean()
