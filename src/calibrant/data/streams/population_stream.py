"""The batches of many streams as one, with a leading axis over members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.utils import _pytree as pytree

from calibrant.data.streams.batch import Batch, Recent, Tensors, stack
from calibrant.data.streams.streams import Stream

Noise = Callable[[int, Batch], Tensors]


class MemberStream(Stream):
    """The batches of several members as one; ``axes`` says what ``vmap`` runs over.

    Parameters
    ----------
    streams : sequence of Stream
    noise : function ``(step, the first member's batch) -> tensors``, optional
        Draws dropout masks for all members at once, along a leading axis.

    Batches that do not change are stacked once.
    """

    def __init__(self, streams: Sequence[Stream], noise: Noise | None = None) -> None:
        self.streams, self._noise = list(streams), noise
        self._still = all(s.constant for s in streams)
        self.constant = self._still and noise is None
        self.rewind()  # a member may have run alone before
        self._recent = Recent(self._at)
        self._bare, self._axes = self._stacked(0)
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
        stacked, axes = self._stacked(step)
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
