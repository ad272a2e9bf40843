"""What the tree members store: the nodes of all trees as concatenated arrays, their checks, and their ONNX operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class StoredTrees:
    """The splits of trees. Child indices count from the first node of the tree.

    A row goes left if its value is at most the threshold, or if it is missing and ``missing_left`` is set.
    """

    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    starts: np.ndarray
    """The index of the first node of each tree, followed by the total number of nodes."""

    @property
    def inner(self) -> np.ndarray:
        """Whether a node has children."""
        raise NotImplementedError

    @property
    def tree(self) -> np.ndarray:
        """The tree of each node."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def place(self) -> np.ndarray:
        """The place of each node in its tree."""
        return np.arange(len(self.feature)) - np.repeat(self.starts[:-1], np.diff(self.starts))

    def check_nodes(self, features: int, *others: np.ndarray) -> None:
        """Raise an error if nodes are inconsistent, for example because a child does not exist.

        ``features`` is the number of columns of the inputs; ``others`` are further arrays with one value for each node.
        """
        integers = (self.feature, self.left, self.right, self.starts)
        if any(part.dtype.kind not in "iu" for part in integers):  # NaN passes all checks below
            raise ValueError("the columns and children of a forest must be integers")
        count, sizes = len(self.feature), np.diff(self.starts)
        arrays = (self.feature, self.threshold, self.missing_left, self.left, self.right, *others)
        if any(part.shape != (count,) for part in arrays):
            raise ValueError("the arrays of a forest differ in length")
        if self.starts[0] != 0 or self.starts[-1] != count or (sizes < 1).any():
            raise ValueError("the trees of a forest do not match its nodes")
        for child in (self.left, self.right):
            # Children come after their parents, so that no path is a circle.
            if ((child <= self.place) | (child >= np.repeat(sizes, sizes)))[self.inner].any():
                raise ValueError("a tree of a forest refers to a child that does not exist")
        if ((self.feature < 0) | (self.feature >= features))[self.inner].any():
            raise ValueError(f"a tree of a forest splits a column that does not exist; there are {features}")

    def onnx_sums(self, graph: Any, inputs: str, targets: np.ndarray, values: np.ndarray, base: np.ndarray) -> str:
        """Write sums of leaf values to a :class:`calibrant.export.graph.Graph`; return their name.

        ``base`` holds the sums before any tree. ``values`` are added to the sums of the numbers ``targets``; each leaf
        has equally many of them, in the order of the nodes.
        """
        leaf, tree, place = ~self.inner, self.tree, self.place
        targets_per_leaf = len(targets) // leaf.sum()
        sums = graph.add(
            "TreeEnsembleRegressor",
            inputs,
            domain="ai.onnx.ml",
            n_targets=len(base),
            base_values=base.astype(np.float32).tolist(),
            nodes_treeids=tree.tolist(),
            nodes_nodeids=place.tolist(),
            nodes_featureids=np.where(leaf, 0, self.feature).tolist(),
            nodes_modes=np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
            nodes_values=np.where(leaf, np.float32(0), rounded_down(self.threshold)).tolist(),
            nodes_truenodeids=np.where(leaf, 0, self.left).tolist(),
            nodes_falsenodeids=np.where(leaf, 0, self.right).tolist(),
            nodes_missing_value_tracks_true=np.where(leaf, 0, self.missing_left).astype(int).tolist(),
            target_treeids=np.repeat(tree[leaf], targets_per_leaf).tolist(),
            target_nodeids=np.repeat(place[leaf], targets_per_leaf).tolist(),
            target_ids=targets.astype(int).tolist(),
            target_weights=values.astype(np.float32).tolist(),
        )
        return str(graph.cast(sums, np.float64))


def joined(forests: Sequence[StoredTrees], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of these names of several forests, one after the other, and ``starts`` of all their trees."""
    arrays = {name: np.concatenate([getattr(forest, name) for forest in forests]) for name in names}
    return arrays | {"starts": starts_of(np.concatenate([np.diff(forest.starts) for forest in forests]))}


def starts_of(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """The index of the first node of each tree, for trees of these sizes, followed by the total number of nodes."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def rounded_down(threshold: np.ndarray) -> np.ndarray:
    """Thresholds as float32. Rounded down, they split float32 numbers exactly as in float64."""
    rounded = threshold.astype(np.float32)
    above = rounded.astype(np.float64) > threshold
    rounded[above] = np.nextafter(rounded[above], np.float32(-np.inf))
    return rounded
