"""The fitted attributes of an estimator."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

Estimator = TypeVar("Estimator")


def fitted_state(estimator: Any) -> dict[str, Any]:
    """The fitted attributes of an estimator: those whose names end with an underscore, as in scikit-learn."""
    return {key: value for key, value in vars(estimator).items() if key.endswith("_") and not key.startswith("_")}


def unfitted(estimator: Estimator) -> Estimator:
    """A shallow copy without fitted attributes.

    ``fit`` trains this copy and then takes over its ``__dict__``. So nothing remains of an earlier fit, and a fit that
    fails changes nothing.
    """
    fresh = copy.copy(estimator)
    for name in fitted_state(estimator):
        delattr(fresh, name)
    return fresh
