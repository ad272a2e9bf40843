"""The reject option of ``predict``: which rows are rejected, and the label that marks them."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.base.settings import shown
from calibrant.selective import RejectionRule, Window


class RejectMixin:
    """``predict`` with a reject option, and ``confidence``; a classifier defines ``predict_proba`` and ``classes_``."""

    classes_: np.ndarray

    if TYPE_CHECKING:  # a method here would hide that of a class further to the right

        def predict_proba(self, X: Any) -> np.ndarray:
            """P(class | x), one column for each entry of ``classes_``."""

    def predict(
        self,
        X: Any,
        *,
        reject: RejectionRule | Window | None = None,
        reject_below: float | None = None,
        reject_label: Any = None,
    ) -> np.ndarray:
        """Return the most probable class of each row, or abstain if it is not probable enough.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        reject : RejectionRule or Window, optional
            Abstain where this rule does not accept :meth:`confidence`. ``rejection_rule`` and the functions of
            :mod:`calibrant.selective` return such rules.
        reject_below : float in [0, 1], optional
            Abstain where :meth:`confidence` is below this number. Cannot be combined with ``reject``.
        reject_label : optional
            The label that marks abstention; it must not be a class. The default depends on the classes: −1 for
            integers, NaN for other numbers, None (in an array of objects) for strings and booleans.
        """
        if reject is not None and reject_below is not None:
            raise ValueError(
                "reject and reject_below must not be given together; got both. Leave out reject_below: a rule has its "
                "own threshold."
            )
        if reject is None and reject_below is None and reject_label is not None:
            raise ValueError("reject_label needs a rule; got none. Give reject or reject_below too.")
        if reject is not None and not isinstance(reject, RejectionRule | Window):
            raise ValueError(
                f"reject must be a RejectionRule or a Window; got {type(reject).__name__}. "
                "Give a number as reject_below."
            )
        probs = self.predict_proba(X)
        predicted, confidence = self.classes_[probs.argmax(axis=1)], probs.max(axis=1)
        if reject is None and reject_below is None:
            return predicted
        accepted = reaches(confidence, reject_below) if reject is None else reject.accepts(confidence)
        return withhold(predicted, accepted, self.classes_, reject_label)

    def confidence(self, X: Any) -> np.ndarray:
        """Return the largest probability of each row, the second output of Eq. (9) of Sanguin et al. 2024."""
        return self.predict_proba(X).max(axis=1)


def reaches(confidence: np.ndarray, threshold: Any) -> np.ndarray:
    """Whether each confidence is at least the threshold ``reject_below``."""
    if not isinstance(threshold, Real) or isinstance(threshold, bool) or not 0 <= float(threshold) <= 1:
        raise ValueError(f"reject_below must be a confidence between 0 and 1; got {shown(threshold)}.")
    return confidence >= float(threshold)


def withhold(predicted: np.ndarray, accepted: np.ndarray, classes: np.ndarray, label: Any) -> np.ndarray:
    """Return ``predicted``, with ``label`` where it is not ``accepted``.

    ``label=None`` chooses by the kind of the classes: −1 for integers, NaN for other numbers, and None (in an array of
    objects) for strings and booleans. A label that is also a class raises an error, because rejected rows would look
    like that class.
    """
    chosen = label is None
    if chosen:
        label = {"i": -1, "u": -1, "f": np.nan}.get(classes.dtype.kind)
    if any(label == c for c in classes.tolist()):
        raise ValueError(
            f"reject_label={shown(label)} is one of the classes, so rejected rows would look like that class. "
            + ("Name another with reject_label." if chosen else "Choose a label that is not in classes_.")
        )
    result = predicted.astype(_common_dtype(classes, label))
    result[~accepted] = label
    return result


def _common_dtype(classes: np.ndarray, label: Any) -> np.dtype:
    """Return a dtype that holds both classes and label: the classes' own kind if the label fits, else object."""
    class_dtype, label_dtype = classes.dtype, np.asarray(label).dtype
    numbers = class_dtype.kind in "iuf" and label_dtype.kind in "iuf"
    if np.ndim(label) == 0 and (numbers or (class_dtype.kind == label_dtype.kind and class_dtype.kind != "O")):
        return np.result_type(class_dtype, label_dtype)
    return np.dtype(object)
