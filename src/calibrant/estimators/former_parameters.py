"""Former names of a classifier's parameters. They keep working for one version, with a DeprecationWarning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from sklearn.base import BaseEstimator

from calibrant._renamed import renamed_attribute, warn_renamed

FORMER = {"outer_rate": "outer_learning_rate", "also_rate": "also_learning_rate"}
"""Parameters by their former names."""
Classifier = TypeVar("Classifier", bound="FormerNames")


def accepts_former_names(cls: type[Classifier]) -> type[Classifier]:
    """Decorate a classifier so that its constructor accepts former names of parameters, with a DeprecationWarning."""
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **params: Any) -> None:
        original(self, *args, **cls._present_params(params, stacklevel=3))

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


class FormerNames(BaseEstimator):
    """An estimator whose parameters and attributes can also be used by their former names."""

    outer_rate = renamed_attribute("outer_rate", "outer_learning_rate")

    def __dir__(self) -> list[str]:
        """Return the names of attributes without former ones, which would warn if scikit-learn displays them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # scikit-learn reads each attribute
            return [name for name in super().__dir__() if name not in FORMER]

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as in scikit-learn; former names work for one version, with a DeprecationWarning."""
        super().set_params(**self._present_params(params, getattr(self, "method", None), stacklevel=3))
        return self

    @classmethod
    def _present_params(
        cls, params: Mapping[str, Any], method: Any = None, *, stacklevel: int | None = None
    ) -> dict[str, Any]:
        """Parameters by their present names. A former name causes a warning, unless ``stacklevel`` is None."""
        found = {}
        for name, value in params.items():
            present = FORMER.get(name, name)
            if present != name and present in params:
                raise TypeError(f"{cls.__name__} got both {present} and its old name {name}; give {present} only.")
            if present != name and stacklevel is not None:
                warn_renamed(f"the parameter {name} of {cls.__name__}", present, stacklevel=stacklevel + 1)
            found[present] = value
        return found
