"""The base of the displays: compute numbers from predictions or a fitted estimator, then draw them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Self

from calibrant.base.labels import class_columns, class_names


class Display:
    """Numbers and how they are drawn. A subclass names its ``prepare_...`` function and defines ``plot``."""

    _prepare: ClassVar[Callable[..., Any]]

    def __init__(self, data: Any, *, name: str | None = None) -> None:
        self.data = data
        self.name = name

    @classmethod
    def from_predictions(
        cls, probs: Any = None, labels: Any = None, *, name: str | None = None, ax: Any = None, **options: Any
    ) -> Self:
        """Compute the numbers and draw them; `options` are those of the ``prepare_...`` function and of `plot`."""
        plot_options = {key: options.pop(key) for key in inspect.signature(cls.plot).parameters if key in options}
        return cls(cls._prepare(probs, labels, **options), name=name).plot(ax, **plot_options)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, name: str | None = None, ax: Any = None, **options: Any
    ) -> Self:
        """Draw for a fitted classifier with `predict_proba`; its name is the default of `name`."""
        name = type(estimator).__name__ if name is None else name
        classes = getattr(estimator, "classes_", None)
        labels = class_names(y) if classes is None else class_columns(y, classes)
        return cls.from_predictions(predict_proba_of(estimator)(X), labels, name=name, ax=ax, **options)

    def plot(self, ax: Any = None) -> Self:
        """Draw into `ax`, or into a new figure."""
        raise NotImplementedError


def predict_proba_of(estimator: Any) -> Callable[[Any], Any]:
    """Return the method of that name; an error if there is none."""
    if not hasattr(estimator, "predict_proba"):
        raise TypeError(
            f"estimator must have predict_proba; got {type(estimator).__name__}. "
            "Wrap it in calibrant.posthoc.CalibratedModel, or use from_predictions."
        )
    method: Callable[[Any], Any] = estimator.predict_proba
    return method
