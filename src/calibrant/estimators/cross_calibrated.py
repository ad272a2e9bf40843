"""``CrossCalibrated``: out-of-fold calibration for any scikit-learn classifier."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Self

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_regressor
from sklearn.utils import _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

from calibrant.base.fitted import unfitted
from calibrant.base.labels import warn_of_other_order
from calibrant.base.warning import warn
from calibrant.data.splits.exact_copies import independent_size
from calibrant.estimators.fold_models import (
    default_trees,
    fit_model,
    held_out_scores,
    mean_scores,
    suited_trees,
)
from calibrant.estimators.folds import (
    Splits,
    dealt_splits,
    fold_count,
    group_numbers,
    named_splits,
    near_groups,
    standardised,
)
from calibrant.estimators.reading import as_table, as_targets, as_weights, encode, warn_of_row_numbers
from calibrant.estimators.selective import SelectiveMixin
from calibrant.pool.linear_member import MANY_CLASSES
from calibrant.pool.pool import fit_pool
from calibrant.pool.pool_members import Rows, logit_scale
from calibrant.posthoc import make_calibrator
from calibrant.posthoc.registry import check_calibrator


class CrossCalibrated(SelectiveMixin, MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """Calibrate any scikit-learn classifier with its own out-of-fold predictions.

    For a classifier that is already fitted, use :class:`calibrant.posthoc.CalibratedModel` and held-out rows.

    The classifier is cloned and fitted once per fold. A calibrator is fitted to the out-of-fold log-probabilities of
    all rows, followed by the last step of :func:`calibrant.pool.pool.fit_pool`,

    ``p(x) = (1 − λ)·softmax(w·ℓ(x) + b) + λ/C``,

    where ℓ are the calibrator's log-probabilities. A classifier that is no better than the class frequencies is
    replaced by them (w = 0), and confidence never exceeds what the number of rows can support. Compared with
    :class:`sklearn.calibration.CalibratedClassifierCV`, one calibration is fitted to all rows instead of one per fold,
    its parameters have a prior, and copies of a row are never on both sides of a fold (if ``cv`` is an int).

    Parameters
    ----------
    estimator : scikit-learn classifier, optional
        It needs ``predict_proba`` or ``decision_function``. None: ``HistGradientBoostingClassifier(learning_rate=0.03,
        max_iter=1000, early_stopping=True)``. In folds with too few rows for early stopping, it has 100 iterations.
    cv : int, splitter or iterable
        An int is the number of folds, which are stratified and keep groups and exact copies of a row together. A
        scikit-learn splitter, or an iterable of (train, test) rows, is used unchanged; rows that it never holds out are
        only trained on.
    ensemble : bool
        True: the classifier is the mean of the fold models. False: it is one model fitted to all rows, with the
        calibration of the fold models, as in ``CalibratedClassifierCV``; it predicts faster but needs one more fit.
    calibrator : str, Calibrator or None
        A name in :data:`calibrant.posthoc.CALIBRATORS`, or your own calibrator; None uses only the last step.
        ``"auto"`` is structured matrix scaling, or vector scaling for more than 50 classes. With few rows it reduces to
        temperature scaling; with more rows it learns more. (:class:`calibrant.posthoc.Auto`, which compares many
        calibrators, can be passed as an object.)
    n_jobs : int, optional
        How many folds are fitted in parallel, as in joblib.
    random_state : int, RandomState instance or None
        Seed of the folds if ``cv`` is an int.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in every scikit-learn classifier
    estimators_ : list of fitted classifiers
        One per fold, or a single one with ``ensemble=False``.
    oof_proba_ : (n_samples, n_classes) array
        Calibrated out-of-fold probabilities of the training rows; NaN for rows that were never held out.
        :meth:`rejection_rule` and :meth:`predict_set` use them.
    oof_labels_, oof_groups_ : (n_samples,) arrays
        The column number of each training row's class, and the number of its group (None without groups).
    calibrator_ : Calibrator or None
        The fitted calibrator.
    pool_ : :class:`calibrant.pool.pool.Pool`
        The last step: ``weights`` (w), ``bias`` and ``lapse``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from calibrant import CrossCalibrated
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = CrossCalibrated(LogisticRegression(max_iter=1000), random_state=0).fit(X, y)
    >>> bool(clf.score(X, y) > 0.9)
    True
    >>> clf.oof_proba_.shape
    (150, 3)
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        cv: Any = 5,
        ensemble: bool = True,
        calibrator: Any = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.cv = cv
        self.ensemble = ensemble
        self.calibrator = calibrator
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, **fit_params: Any) -> Self:
        """Fit a clone of the estimator on each fold, and the calibration to the out-of-fold predictions.

        A new fit replaces an earlier one; a failed fit leaves the classifier unchanged.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            In any form that the estimator accepts.
        y : array-like of shape (n_samples,)
            Labels of two or more classes.
        sample_weight : array-like of shape (n_samples,), optional
            For the calibration, and for the estimator if its ``fit`` accepts weights; a warning says if it does not.
            Rows of weight zero are ignored.
        groups : array-like of shape (n_samples,), optional
            Rows with equal values (one patient, one recording) are held out together; passed on to a splitter. If
            ``cv`` is an int and many rows are near copies, these are held out together too, with a warning, unless
            groups are given.
        **fit_params
            For the estimator's ``fit``.
        """
        warn_of_other_order(X, y, "X and y")
        fresh = unfitted(self)
        fresh._fit(X, y, sample_weight, groups, fit_params)
        self.__dict__ = fresh.__dict__
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, groups: Any, fit_params: dict[str, Any]) -> None:
        """Fit an unfitted classifier; after an error it may be partly fitted, so ``fit`` calls this on a copy."""
        self._check_estimator()
        X, y = indexable(as_table(X), as_targets(y))
        if self.estimator is None:  # a pipeline of the user may leave the column out
            warn_of_row_numbers(X)
        y = column_or_1d(y, warn=True)
        if not len(y):
            raise ValueError("Found array with 0 sample(s); give at least two rows of different classes.")
        check_classification_targets(y)
        weights = as_weights(sample_weight, X) if sample_weight is not None else None
        self.classes_, codes = encode(y, weights)
        self.calibrator_ = self._get_calibrator()
        estimator = self._get_estimator()
        if weights is not None and has_fit_parameter(estimator, "sample_weight"):
            fit_params = {**fit_params, "sample_weight": weights}
        elif weights is not None and not any(name.endswith("sample_weight") for name in fit_params):
            warn(
                f"{type(estimator).__name__} does not accept sample_weight, so the weights count in the calibration "
                "only. Give the weights of a pipeline to one of its steps too: fit(…, step__sample_weight=weights)."
            )
        used = np.ones(len(y), dtype=bool) if weights is None else weights > 0
        splits, together = self._splits(X, y, codes, used, groups)
        train_rows = [train for train, _ in splits] + [np.flatnonzero(used)] * (not self.ensemble)
        models = Parallel(n_jobs=self.n_jobs)(
            delayed(fit_model)(self._copy_for(estimator, y[rows]), X, y, rows, fit_params) for rows in train_rows
        )
        sizes, of_folds = [len(rows) for rows in train_rows], slice(len(splits))
        scores, self._least = held_out_scores(models[of_folds], sizes[of_folds], X, splits, self.classes_)
        scored = np.flatnonzero(~np.isnan(scores).any(axis=1))
        oof_weights, oof_groups = (None if v is None else v[scored] for v in (weights, together))
        are_log_probs = all(hasattr(model, "predict_proba") for model in models)
        self.oof_proba_ = np.full(scores.shape, np.nan)
        self.oof_proba_[scored] = self._calibrate(scores[scored], codes[scored], oof_weights, oof_groups, are_log_probs)
        self.oof_labels_, self.oof_groups_ = codes, group_numbers(groups, X)
        self.estimators_ = models if self.ensemble else models[-1:]
        self._sizes = sizes if self.ensemble else sizes[-1:]
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(models[0], name):
                setattr(self, name, getattr(models[0], name))

    def _calibrate(
        self, scores: np.ndarray, codes: np.ndarray, weights: Any, groups: Any, are_log_probs: bool
    ) -> np.ndarray:
        """Fit the calibration to out-of-fold scores, and return the calibrated probabilities of these rows."""
        counted = np.ones(len(codes)) if weights is None else weights
        counted = counted * (independent_size(codes, softmax(scores, axis=1), groups) / counted.sum())
        self._scale = 1.0 if are_log_probs else logit_scale(Rows(scores, codes, counted, len(self.classes_)))
        if self.calibrator_ is not None:
            self.calibrator_.fit(log_softmax(self._scale * scores, axis=1), codes, counted)
        log_probs = self._log_probs(scores)[None]
        self.pool_ = fit_pool(log_probs, codes, counted, groups=groups)
        return self.pool_.probs(log_probs)

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(class | x), one column for each entry of ``classes_``."""
        check_is_fitted(self)
        X = as_table(X)
        scores = mean_scores(self.estimators_, self._sizes, X, self.classes_, self._least)
        return self.pool_.probs(self._log_probs(scores)[None])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        input_tags = get_tags(self._get_estimator()).input_tags
        tags.input_tags.sparse = input_tags.sparse
        tags.input_tags.allow_nan = input_tags.allow_nan
        return tags

    def _log_probs(self, scores: np.ndarray) -> np.ndarray:
        """Return the calibrator's log-probabilities for the models' mean scores."""
        log_p = log_softmax(self._scale * scores, axis=1)
        return log_p if self.calibrator_ is None else np.log(np.maximum(self.calibrator_.predict_proba(log_p), 1e-300))

    def _get_calibrator(self) -> Any:
        if self.calibrator is None:
            return None
        if not isinstance(self.calibrator, str) and hasattr(self.calibrator, "predict_proba"):
            return clone(self.calibrator)
        check_calibrator(self.calibrator, "calibrator")
        auto = "structured-matrix" if len(self.classes_) <= MANY_CLASSES else "vector"
        return make_calibrator(auto if self.calibrator == "auto" else self.calibrator)

    def _check_estimator(self) -> None:
        model = self.estimator
        if model is not None and (isinstance(model, type) or not hasattr(model, "fit") or is_regressor(model)):
            raise TypeError(f"estimator must be a classifier, such as LogisticRegression(); got {model!r}.")

    def _get_estimator(self) -> Any:
        return default_trees() if self.estimator is None else self.estimator

    def _copy_for(self, estimator: Any, labels: np.ndarray) -> Any:
        """Return a clone for rows with these labels; only the default estimator depends on them."""
        return suited_trees(clone(estimator), labels) if self.estimator is None else clone(estimator)

    def _splits(
        self, X: Any, y: np.ndarray, codes: np.ndarray, used: np.ndarray, groups: Any
    ) -> tuple[Splits, np.ndarray | None]:
        """Return each fold's training and held-out rows (none of weight zero), and which rows belong together."""
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        numbers, rows = group_numbers(groups, X), np.flatnonzero(used)
        if not isinstance(self.cv, Integral):
            return named_splits(self.cv, X, y, groups, used=used), numbers
        number, used_inputs = fold_count(self.cv), _safe_indexing(X, rows)
        named = near_groups(standardised(used_inputs), None, seed=seed) if numbers is None else numbers[rows]
        splits, used_groups = dealt_splits(used_inputs, codes[rows], number, seed=seed, groups=named)
        together = None if used_groups is None else np.zeros(len(y), dtype=int)
        if together is not None:
            together[rows] = used_groups
        return tuple((rows[a], rows[b]) for a, b in splits), together
