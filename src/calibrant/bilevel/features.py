"""The features of the last training batches, for hypergradients of the head."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.data.batch import Batch, Tensors, map_tensors, tensors_of


class FeatureMemory:
    """The last ``size`` batches and their features, oldest first.

    Parameters
    ----------
    size : int
    axes : Batch, optional
        For a population: 0 for leaves of a batch with a leading axis over members, None for shared leaves.
    """

    def __init__(self, size: int, axes: Batch | None = None) -> None:
        self.axes = axes
        self.kept: deque[tuple[Batch, list[Tensor]]] = deque(maxlen=size)
        self.allocated = 0
        """The number of entries so far that got their own tensors. A recorded step holds until it changes."""

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, batch: Batch, features: Sequence[Tensor]) -> None:
        """Add a batch. If the memory is full, the oldest one is dropped."""
        batch = batch._replace(seed=None)
        full = len(self.kept) == (1 if isinstance(batch.index, slice) else self.kept.maxlen)
        if full and self._same_forms(batch, features):
            self._shift()
            self._write(batch, features)
        else:
            if isinstance(batch.index, slice):
                self.kept.clear()  # each full batch contains all samples, so only the newest features are needed
            self.kept.append(map_tensors(torch.clone, (batch, list(features))))
            self.allocated += 1

    def _same_forms(self, batch: Batch, features: Sequence[Tensor]) -> bool:
        """Whether all entries have the shapes of the given one. The last batch of a loader is often smaller."""
        forms = [[t.shape for t in (*_leaves(own), *kept)] for own, kept in (*self.kept, (batch, features))]
        return all(form == forms[0] for form in forms)

    def _shift(self) -> None:
        """Move every entry one place to the front, in place, so that a recorded step repeats it in each replay."""
        entries = [[*_leaves(batch), *features] for batch, features in self.kept]
        for own, following in itertools.pairwise(entries):
            for kept, new in zip(own, following, strict=True):
                kept.copy_(new)

    def _write(self, batch: Batch, features: Sequence[Tensor]) -> None:
        kept, own = self.kept[-1]
        for old, new in zip([*_leaves(kept), *own], [*_leaves(batch), *features], strict=True):
            old.copy_(new)

    def joined(self) -> tuple[Batch, list[Tensor]]:
        """All batches as one, and their features."""
        batches, features = zip(*self.kept, strict=True)
        if len(batches) == 1:
            return batches[0], features[0]
        return join(batches, self.axes), join_answers(features, self.axes is not None)

    def tensors(self) -> Tensors:
        """All kept tensors by name, for a checkpoint."""
        return {
            f"{position}.{kind}{number}": leaf
            for position, (batch, features) in enumerate(self.kept)
            for kind, leaves in (("batch", _leaves(batch)), ("features", features))
            for number, leaf in enumerate(leaves)
        }

    def restore(self, tensors: Tensors, like: Batch) -> None:
        """Restore the result of :meth:`tensors`. ``like`` is a batch of the same stream."""
        self.kept.clear()
        positions = sorted({int(name.partition(".")[0]) for name in tensors})
        for position in positions:
            batch = _with_leaves(like, _numbered(tensors, f"{position}.batch"))
            self.kept.append((batch, list(_numbered(tensors, f"{position}.features"))))
        self.allocated += len(positions)


def join(batches: Sequence[Batch], axes: Batch | None = None) -> Batch:
    """Several batches as one, without their dropout masks. ``axes`` are those of a population's stream.

    Inputs that differ in more than the number of samples, such as sentences padded batch by batch, become None. A loss
    of the head does not need them, because it gets the features.
    """

    def cat(name: str) -> Any:
        parts = [getattr(batch, name) for batch in batches]
        if parts[0] is None or (name == "inputs" and axes is None and not _of_one_shape(parts)):
            return None
        shift = 0 if axes is None else 1
        along = pytree.tree_map(lambda _: 0, parts[0]) if axes is None else getattr(axes, name)
        return pytree.tree_map(
            lambda axis, *leaves: torch.cat(leaves, 0 if axis is None else axis + shift), along, *parts
        )

    joined = {name: cat(name) for name in ("inputs", "targets", "index", "sample_weight")}
    return batches[0]._replace(noise={}, seed=None, **joined)


def _of_one_shape(parts: Sequence[Any]) -> bool:
    """Whether the tensors of all parts have the same shape except for the number of samples."""
    return len({tuple(t.shape[1:] for t in tensors_of(part)) for part in parts}) == 1


def join_answers(answers: Sequence[Sequence[Any]], population: bool) -> list[Any]:
    """Join a network's outputs on several batches, call by call, to its outputs on all of them."""
    dim = 1 if population else 0
    return [
        pytree.tree_map(lambda *parts: torch.cat(parts, dim) if isinstance(parts[0], Tensor) else parts[0], *calls)
        for calls in zip(*answers, strict=True)
    ]


def _leaves(batch: Batch) -> list[Tensor]:
    return tensors_of(batch._replace(seed=None))


def _with_leaves(like: Batch, tensors: Iterator[Tensor]) -> Batch:
    return pytree.tree_map(lambda leaf: next(tensors) if isinstance(leaf, Tensor) else leaf, like._replace(seed=None))


def _numbered(tensors: Tensors, prefix: str) -> Iterator[Tensor]:
    count = sum(name.startswith(prefix) for name in tensors)
    return iter([tensors[f"{prefix}{k}"] for k in range(count)])
