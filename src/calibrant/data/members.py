"""The batches of many streams as one, with a leading axis over members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from calibrant.data.batch import Batch, stack
from calibrant.data.streams import Stream, TensorStream

Draw = Callable[[int], Batch]


class MemberStream(Stream):
    """The batches of several members as one; ``axes`` says what ``vmap`` runs over.

    Parameters
    ----------
    streams : sequence of Stream
    draws : sequence of functions ``step -> Batch``, optional
        The members' own ``batch`` functions where they do more than their streams (draw dropout masks, say).

    Batches that do not change are stacked once. Mini-batches of members with as many samples each are gathered in one
    operation; they are those of the members' streams to the bit.
    """

    def __init__(self, streams: Sequence[Stream], draws: Sequence[Draw] | None = None) -> None:
        self.streams = list(streams)
        self.constant = draws is None and all(s.constant for s in streams)
        self.rewind()  # a member may have run alone before
        self._draw: Callable[[int], tuple[Batch, Batch]]
        if draws is None and _alike(self.streams):
            self._draw = _Gathered(self.streams)  # type: ignore[arg-type]
        else:
            each = [s.batch for s in streams] if draws is None else draws
            self._draw = lambda step: stack([draw(step) for draw in each])
        self._first, self.axes = self._draw(0)

    @property
    def batches(self) -> int:
        return min(stream.batches for stream in self.streams)

    def batch(self, step: int) -> Batch:
        if self.constant or step == 0:
            return self._first
        stacked, axes = self._draw(step)
        if axes != self.axes:
            raise ValueError("What the members share changed between steps; give each member tensors of its own.")
        return stacked

    def release(self, before: int) -> None:
        for stream in self.streams:
            stream.release(before)

    def rewind(self) -> None:
        for stream in self.streams:
            stream.rewind()


class _Gathered:
    """Mini-batches of all members at once: each member's rows are picked out of its own, or the shared, tensors."""

    def __init__(self, streams: Sequence[TensorStream]) -> None:
        self.streams = streams
        self.whole, axes = stack([s.whole for s in streams])
        self.shared = {name: getattr(axes, name) is None for name in ("inputs", "targets", "index", "weights")}
        weights = None if self.whole.weights is None else 0
        self.axes = axes._replace(inputs=0, targets=0, index=0, weights=weights)  # type: ignore[arg-type]
        self.members = torch.arange(len(streams), device=self.whole.targets.device)[:, None]
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def __call__(self, step: int) -> tuple[Batch, Batch]:
        first = self.streams[0]
        assert first.batch_size is not None
        epoch, position = divmod(step, first.steps_per_epoch)
        if self._order[0] != epoch:
            orders = torch.stack([s.order(epoch) for s in self.streams])
            self._order = epoch, orders.to(self.members.device)
        rows = self._order[1][:, position * first.batch_size : (position + 1) * first.batch_size]
        whole = self.whole
        index = rows if isinstance(whole.index, slice) else self._pick("index", rows)
        weights = None if whole.weights is None else self._pick("weights", rows)
        batch = whole._replace(
            inputs=self._pick("inputs", rows), targets=self._pick("targets", rows), index=index, weights=weights
        )
        return batch, self.axes

    def _pick(self, name: str, rows: Tensor) -> Tensor:
        values: Tensor = getattr(self.whole, name)
        return values[rows] if self.shared[name] else values[self.members, rows]


def _alike(streams: Sequence[Stream]) -> bool:
    """Whether all streams draw plain mini-batches, and as many of one size."""
    return all(type(s) is TensorStream and s.batch_size is not None and s.augment is None for s in streams) and (
        len({(s.size, s.batch_size, s.steps_per_epoch) for s in streams if isinstance(s, TensorStream)}) == 1
    )
