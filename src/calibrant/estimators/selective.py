"""The reject option of ``predict``, and rejection rules and prediction sets from out-of-fold probabilities.

Cross-fitting gives every training row a probability from models that were not trained on it. A rule that needs unseen
rows can be fitted to these instead of to a separate sample. The guarantee is then slightly different.

**The rejection rule.** Let f_1..f_K be the models that each leave out a fold. Let R̄(t) be their pooled risk on new
data, Σ_k P(f_k wrong, c_k ≥ t) / Σ_k P(c_k ≥ t), and R(t) the risk of the classifier itself, which is the mean of the
f_k or one model trained on all rows. If

(A1) the out-of-fold rows' confidences and errors are distributed like those of independent new rows, each judged by one
     of the fixed models f_k, drawn at random, and
(A2) at the chosen threshold, the classifier is wrong no more often than the models that left out a fold,
     R(t̂) ≤ R̄(t̂),

then P(R(t̂) ≤ risk) ≥ level, by the theorems of :mod:`calibrant.selective.target_risk`.

*About (A1).* Each row is new to its own model, so error counts have the right mean. But a row trained the models of
the other folds, so the folds are not independent of one another, and the variance can be larger than binomial. For
stable learners, whose predictions hardly change with one row, the difference vanishes as n grows (Austern & Zhou 2020;
Bayle, Bayle, Janson & Mackey 2020). Without stability nothing is guaranteed. A calibration step with a few parameters
that is fitted to the out-of-fold rows also adds to this dependence.

*About (A2).* The f_k were trained on (K − 1)/K of the rows. The classifier was trained on more rows and is usually
better, which makes the rule cautious. A mean of models is also usually better than each of them. (A2) fails if the
classifier is more confident than the f_k without being right more often.

**Prediction sets.** The quantile comes from the out-of-fold scores, but the scores of new rows come from the
classifier. The coverage holds if the classifier's scores of the true class are distributed like the out-of-fold scores,
or lower; see :mod:`calibrant.selective.cross_conformal` for what is known.

**Groups and copies.** Rows of one group (a patient, a sensor) and copies of a row (oversampling) are not independent,
so n rows count for fewer. If ``fit`` is given ``groups``, one row of each group is drawn, and the
statements are about one random row of a new group. Folds must not divide a group. If rows have groups that are not
given, the confidence level is overstated. Rows that are equal by chance, as in a table of a few categories, need no
group.

**Weights.** The rules count rows, so risk and coverage are those of the distribution that the rows come from,
regardless of the sample weights in training.

``python -m studies.guarantees`` measures how often the guarantees of rules and sets hold, on data with a known
posterior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from calibrant.base.settings import check_fraction, shown
from calibrant.selective import RejectionRule, SetRule, Window, conformal_rule, threshold_for_risk
from calibrant.selective.conformal import Seed
from calibrant.selective.set_scores import SetScore


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
        if reject_below is not None:
            reject = Window.below(check_fraction(reject_below, "reject_below", closed=True))
        if reject is None:
            return predicted
        return withhold(predicted, reject.accepts(confidence), self.classes_, reject_label)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def confidence(self, X: Any) -> np.ndarray:
        """Return the largest probability of each row, the second output of Eq. (9) of Sanguin et al. 2024."""
        return self.predict_proba(X).max(axis=1)


class SelectiveMixin(RejectMixin):
    """``rejection_rule``, ``predict_set`` and ``predict(X, reject=rule)`` for a cross-fitted classifier.

    The classifier needs ``predict_proba`` and the fitted attributes

    - ``classes_``;
    - ``oof_proba_``, (n_samples, n_classes): the probabilities of each training row from models that were not trained
      on it, NaN for rows without such models;
    - ``oof_labels_``, (n_samples,): the column number of each training row's class;
    - ``oof_groups_``, (n_samples,), optional: the group of each training row, None without groups.
    """

    oof_proba_: np.ndarray
    oof_labels_: np.ndarray
    oof_groups_: np.ndarray | None

    def rejection_rule(
        self,
        risk: float = 0.05,
        level: float = 0.9,
        *,
        method: Literal["ranks", "fixed-sequence", "uniform"] = "ranks",
    ) -> RejectionRule:
        """Choose when to abstain, so that at most a share ``risk`` of the accepted predictions is wrong.

        The rule is fitted on out-of-fold probabilities. With probability ``level`` over training sets, the error rate
        of accepted predictions on new data is at most ``risk``, if the learner is stable and the classifier is no
        worse than the models that left out a fold. Every row counts once, whatever its sample weight in ``fit``. The
        module :mod:`calibrant.estimators.selective` has the exact statement, and ``python -m studies.guarantees``
        measures it. A rule fitted to a separate sample needs no such assumption:
        ``calibrant.selective.threshold_for_risk(clf.confidence(X), clf.predict(X) == y, risk)``.

        Parameters
        ----------
        risk : float in (0, 1)
            The largest error rate among accepted predictions.
        level : float in (0, 1)
            The probability that the rule keeps the risk.
        method : {"ranks", "fixed-sequence", "uniform"}
            As in :func:`calibrant.selective.threshold_for_risk`.

        Returns
        -------
        RejectionRule
            For ``predict(X, reject=rule)``. Its ``found`` is False if no threshold meets the target.
        """
        probs, labels = self._out_of_fold("rejection_rule")
        return threshold_for_risk(probs.max(axis=1), probs.argmax(axis=1) == labels, risk, level=level, method=method)

    def set_rule(
        self,
        coverage: float = 0.9,
        score: str | SetScore = "aps",
        *,
        by_class: bool = False,
        allow_empty: bool = False,
        random_state: Seed = None,
    ) -> SetRule:
        """Return the rule of :meth:`predict_set`, which can be stored as JSON and applied to ``predict_proba(X)``."""
        probs, labels = self._out_of_fold("set_rule")
        return conformal_rule(
            probs, labels, coverage, score=score, by_class=by_class, allow_empty=allow_empty, seed=random_state
        )

    def predict_set(
        self,
        X: Any,
        coverage: float = 0.9,
        score: str | SetScore = "aps",
        *,
        by_class: bool = False,
        allow_empty: bool = False,
        random_state: Seed = None,
    ) -> np.ndarray:
        """Return a set of classes for each row that contains the true class with probability ``coverage``.

        The sets are fitted on out-of-fold probabilities. The probability is over training sets and new rows together.
        It assumes that the classifier's scores of new rows are distributed like the out-of-fold scores; see the module
        :mod:`calibrant.estimators.selective`. Each call fits the rule again; for many small batches, fit it once with
        :meth:`set_rule` and apply it to ``predict_proba(X)``.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        coverage : float in (0, 1)
            The probability with which a set holds the true class.
        score : {"aps", "raps", "lac"} or a score
            As in :func:`calibrant.selective.conformal_rule`. "aps": sets grow where a row is hard. "raps": the same
            with a penalty on long sets. "lac": the smallest sets on average. :class:`calibrant.selective.RAPS` and
            :class:`~calibrant.selective.APS` take options.
        by_class : bool
            Require the coverage within each class. Classes with few rows are then in most sets.
        allow_empty : bool
            Leave sets empty where no class fits; by default they hold at least the most probable class.
        random_state : int, optional
            For randomised scores only.

        Returns
        -------
        sets : bool array of shape (n_samples, n_classes)
            True where the class, an entry of ``classes_``, belongs to the row's set.
        """
        generator = np.random.default_rng(random_state)
        rule = self.set_rule(coverage, score, by_class=by_class, allow_empty=allow_empty, random_state=generator)
        return rule.apply(self.predict_proba(X), seed=generator)

    def _out_of_fold(self, method: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the out-of-fold probabilities and labels of rows that have them; one row of each group."""
        check_is_fitted(self)
        rows = np.flatnonzero(np.isfinite(self.oof_proba_).all(axis=1))
        if not len(rows):
            raise ValueError(
                f"{method} needs out-of-fold probabilities, but this classifier has none: every model was trained on "
                "all rows. Set a sample aside and use threshold_for_risk or conformal_rule of calibrant.selective."
            )
        if getattr(self, "oof_groups_", None) is not None:
            rows = one_of_each(self.oof_groups_, rows)
        return self.oof_proba_[rows], self.oof_labels_[rows]


def one_of_each(groups: Any, rows: np.ndarray) -> np.ndarray:
    """Draw one of the given rows for each group, always the same one."""
    drawn = np.random.default_rng(0).permutation(rows)
    return np.sort(drawn[np.unique(np.asarray(groups)[drawn], return_index=True)[1]])


def check_out_of_fold(classifier: Any) -> None:
    """Raise an error if the out-of-fold values of a file do not fit together."""
    probs, labels = (getattr(classifier, name, None) for name in ("oof_proba_", "oof_labels_"))
    if probs is not None and (labels is None or probs.shape != (len(labels), len(classifier.classes_))):
        raise ValueError("out-of-fold probabilities must have a label for each row and a column for each class")
    if labels is None:
        return
    if labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(len(classifier.classes_))).all():
        raise ValueError("out-of-fold labels must be positions of classes")


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
    kinds = {classes.dtype.kind, np.asarray(label).dtype.kind}
    if len(kinds) > 1 and not kinds <= set("iuf"):  # no other type holds both
        predicted = predicted.astype(object)
    return np.where(accepted, predicted, np.asarray(label))
