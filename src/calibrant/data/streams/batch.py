"""A batch, the input of a loss, with all its random numbers already drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tensors = dict[str, Tensor]


class Batch(NamedTuple):
    """One draw from a data set.

    ``index`` says which samples these are (``slice(None)`` for all of them, in order; ``None`` if unknown), so that
    per-sample outer variables find their sample. ``noise`` holds dropout masks, ``hyper`` constants that may differ
    between the members of a population, and ``seed`` replays all other random numbers of the network. ``sample_weight``
    holds constant weights of mean 1 over the whole set.
    """

    inputs: Any
    targets: Tensor
    index: Tensor | slice | None = None  # type: ignore[assignment]  # hides tuple.index, which is not needed
    noise: Tensors = {}  # noqa: RUF012 (a NamedTuple's default is shared, and never written to)
    hyper: Tensors = {}  # noqa: RUF012
    seed: int | None = None
    sample_weight: Tensor | None = None

    def weighted(self, losses: Tensor) -> Tensor:
        """Per-sample losses times sample weights, with mean ``Σ w_i·l_i / n``; unchanged without weights."""
        if self.sample_weight is None:
            return losses
        if losses.shape != self.sample_weight.shape:
            raise ValueError(
                f"losses must have one value per sample, of shape {tuple(self.sample_weight.shape)}, because the data "
                f"has sample weights; got shape {tuple(losses.shape)}. Do not reduce it, or leave the weights out."
            )
        return losses * self.sample_weight

    def require_index(self, who: str) -> Tensor | slice:
        """The index, or an error that says how to supply it."""
        if self.index is None:
            raise ValueError(
                f"{who} has one entry per training sample, but the batches do not say which samples they hold. Give "
                "tensors instead of a loader, or wrap the data set in calibrant.data.Indexed, so that each batch "
                "is (inputs, targets, index)."
            )
        return self.index


class Recent:
    """Remember the last few batches, so that a step that is needed twice (look-ahead and training) is drawn once."""

    def __init__(self, draw: Callable[[int], Any], keep: int = 3) -> None:
        self.draw, self.keep = draw, keep
        self._batches: dict[int, Any] = {}

    def __call__(self, step: int) -> Any:
        if step not in self._batches:
            while len(self._batches) >= self.keep:
                del self._batches[next(iter(self._batches))]
            self._batches[step] = self.draw(step)
        return self._batches[step]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the batches; they are drawn again."""
        return self.__dict__ | {"_batches": {}}


def map_tensors(fn: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply ``fn`` to the tensors of a nested structure and keep everything else."""
    if isinstance(tree, Tensor):
        return fn(tree)
    if type(tree) is dict:  # the usual structures, ten times faster than torch's pytree
        return {name: map_tensors(fn, value) for name, value in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(map_tensors(fn, value) for value in tree)
    if type(tree) is Batch:
        return Batch(*(map_tensors(fn, value) for value in tree))
    return pytree.tree_map(lambda leaf: fn(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of a nested structure, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) in (dict, tuple, list):
        values = tree.values() if type(tree) is dict else tree
        return [leaf for value in values for leaf in tensors_of(value)]
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def as_dtype(inputs: Any, dtype: torch.dtype | None) -> Any:
    """``inputs`` in the network's precision; whole numbers, such as tokens, are not converted."""
    return inputs if dtype is None else map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)


def stack(batches: list[Batch]) -> tuple[Batch, Batch]:
    """Batches of several members as one, and the axes over which ``vmap`` runs.

    Tensors get a leading axis (0 in the second result); objects that all members share are not stacked (None).
    """
    leaves, specs = zip(*(pytree.tree_flatten(b._replace(seed=None)) for b in batches), strict=True)
    if any(s != specs[0] for s in specs):
        raise ValueError(
            "The members' batches must have the same structure; got different ones. Give problems of one kind."
        )
    columns = list(zip(*leaves, strict=True))
    for column in columns:
        if not isinstance(column[0], Tensor) and any(leaf != column[0] for leaf in column):
            raise ValueError(
                "Values that differ between the batches of members must be tensors; got "
                f"{column[0]!r} for the first member."
            )
    shared = [not isinstance(c[0], Tensor) or all(leaf is c[0] for leaf in c) for c in columns]
    for column, same in zip(columns, shared, strict=True):
        shapes = {tuple(leaf.shape) for leaf in column} if not same else set()
        if len(shapes) > 1:
            raise ValueError(
                f"The members' batches have different shapes ({', '.join(map(str, sorted(shapes)))}). "
                "Give every member the same number of samples, or run them separately."
            )
    stacked = [c[0] if same else torch.stack(c) for c, same in zip(columns, shared, strict=True)]
    axes = [None if same else 0 for same in shared]
    return pytree.tree_unflatten(stacked, specs[0]), pytree.tree_unflatten(axes, specs[0])
