"""The methods of the studies on synthetic sets: the registered ones, and the default of the classifier."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.methods import METHODS, Method, SelfCalibrated
from calibrant.methods.blend import MEMBERS
from studies.common.shared import checked_methods

POOLED = "self-calibrated-pool"
"""The default of SelfCalibratedClassifier: networks with embedded columns, boosted trees and a linear model."""


def synthetic_methods() -> dict[str, Method]:
    """Return all methods that these studies know, by id."""
    return {name: entry.method for name, entry in METHODS.items()} | {POOLED: SelfCalibrated(members=MEMBERS)}


def chosen_methods(names: Sequence[str] | None) -> dict[str, Method]:
    """Return the named methods; by default the registered ones. The pool must be named, because it takes longer."""
    known = synthetic_methods()
    return {name: known[name] for name in checked_methods(list(METHODS) if names is None else names, known)}
