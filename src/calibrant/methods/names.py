"""All methods that :func:`calibrant.fit` knows by name: those of both papers."""

from __future__ import annotations

from calibrant.methods.images import IMAGE_METHODS, TABLE_3
from calibrant.methods.registry import METHODS, Entry
from calibrant.methods.reweighting import Reweighting

ALL_METHODS: dict[str, Entry] = {
    **IMAGE_METHODS,
    **TABLE_3,
    "weights": Entry(Reweighting(), "one weight per training sample, learned from clean held-out labels"),
    **METHODS,
}
"""Methods by name. ``focal`` is the one of the first paper.

The second paper's methods train by SGD with a recipe for image networks. For other networks, choose ``epochs`` and
``learning_rate``.
"""
