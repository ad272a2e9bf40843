"""The forms of values in a graph: shape, precision and device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx


class ValueForm(NamedTuple):
    """The form of a node's value, ``node.meta["val"]``. ``make_fx`` gives a fake tensor instead."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def shape(node: fx.Node) -> torch.Size:
    """The shape of a node's value."""
    return node.meta["val"].shape


def dtype(node: fx.Node) -> torch.dtype:
    """The precision of a node's value."""
    return node.meta["val"].dtype


def same_form(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values have the same shape and precision."""
    return shape(a) == shape(b) and dtype(a) == dtype(b)


def set_form(node: fx.Node, size: Sequence[int], like: fx.Node) -> None:
    """Set the form of a new node. Its value is not a constant, so its device is unknown."""
    node.meta = {"val": ValueForm(torch.Size(size), dtype(like), torch.device("meta"))}
