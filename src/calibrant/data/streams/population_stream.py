"""The batches of many streams as one, with a leading axis over members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.data.streams.batch import Batch, Recent, Tensors, stack
from calibrant.data.streams.streams import Stream, TensorStream

Noise = Callable[[int, Batch], Tensors]


class MemberStream(Stream):
    """The batches of several members as one; ``axes`` says what ``vmap`` runs over.

    Parameters
    ----------
    streams : sequence of Stream
    noise : function ``(step, the first member's batch) -> tensors``, optional
        Draws dropout masks for all members at once, along a leading axis.

    Batches that do not change are stacked once. Mini-batches of members with equal numbers of samples are gathered in
    one operation. They are identical to those of the members' streams.
    """

    def __init__(self, streams: Sequence[Stream], noise: Noise | None = None) -> None:
        self.streams, self._noise = list(streams), noise
        self._still = all(s.constant for s in streams)
        self.constant = self._still and noise is None
        self.rewind()  # a member may have run alone before
        self._draw: Callable[[int], tuple[Batch, Batch]]
        if _alike(self.streams):
            self._draw = _Gathered(self.streams)  # type: ignore[arg-type]
        else:
            self._draw = self._stacked
        self._recent = Recent(self._at)
        self._bare, self._axes = self._draw(0)
        self._first = self._with_noise(0, self._bare)
        self.axes = self._axes._replace(noise=dict.fromkeys(self._first.noise, 0))  # type: ignore[arg-type]

    @property
    def batches(self) -> int:
        return min(stream.batches for stream in self.streams)

    def batch(self, step: int) -> Batch:
        if self.constant or step == 0:
            return self._first
        return self._recent(step)

    def _at(self, step: int) -> Batch:
        if self._still:
            return self._with_noise(step, self._bare)
        stacked, axes = self._draw(step)
        if axes != self._axes:
            raise ValueError("Tensors that members share must not change between steps; give each member its own.")
        return self._with_noise(step, stacked)

    def _stacked(self, step: int) -> tuple[Batch, Batch]:
        return stack([s.batch(step) for s in self.streams])

    def _with_noise(self, step: int, batch: Batch) -> Batch:
        if self._noise is None:
            return batch
        first = pytree.tree_map(lambda leaf, axis: leaf if axis is None else leaf[0], batch, self._axes)
        return batch._replace(noise=self._noise(step, first))

    def release(self, before: int) -> None:
        for stream in self.streams:
            stream.release(before)

    def rewind(self) -> None:
        for stream in self.streams:
            stream.rewind()


class _Gathered:
    """Mini-batches of all members at once, gathered from each member's own or the shared tensors."""

    def __init__(self, streams: Sequence[TensorStream]) -> None:
        self.streams = streams
        self.whole, axes = stack([s.whole for s in streams])
        self.shared = {name: getattr(axes, name) is None for name in ("inputs", "targets", "index", "sample_weight")}
        weights = None if self.whole.sample_weight is None else 0
        self.axes = axes._replace(inputs=0, targets=0, index=0, sample_weight=weights)  # type: ignore[arg-type]
        members = torch.arange(len(streams), device=self.whole.targets.device)[:, None]
        self.begins = members * streams[0].size  # the first row of each member in a table of all members' rows
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def __call__(self, step: int) -> tuple[Batch, Batch]:
        first = self.streams[0]
        epoch, position = divmod(step, first.steps_per_epoch)
        if self._order[0] != epoch:
            orders = torch.stack([s.order(epoch) for s in self.streams])
            self._order = epoch, orders.to(self.begins.device)
        rows = self._order[1][:, first.rows_of(position)]
        whole = self.whole
        index = rows if isinstance(whole.index, slice) else self._pick("index", rows)
        weights = None if whole.sample_weight is None else self._pick("sample_weight", rows)
        batch = whole._replace(
            inputs=self._pick("inputs", rows), targets=self._pick("targets", rows), index=index, sample_weight=weights
        )
        return batch, self.axes

    def _pick(self, name: str, rows: Tensor) -> Tensor:
        values: Tensor = getattr(self.whole, name)
        if not self.shared[name]:
            values, rows = values.flatten(0, 1), rows + self.begins
        return values.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def _alike(streams: Sequence[Stream]) -> bool:
    """Whether all streams draw plain mini-batches, equal in number and size."""
    return all(type(s) is TensorStream and _plain(s) for s in streams) and (
        len({(s.size, s.batch_size, s.steps_per_epoch) for s in streams if isinstance(s, TensorStream)}) == 1
    )


def _plain(stream: TensorStream) -> bool:
    """Whether a stream's mini-batches are rows of one tensor."""
    changed = stream.augment is not None or stream.prepare is not None
    return stream.batch_size is not None and not changed and isinstance(stream.inputs, Tensor)
