"""``CrossCalibrated``: out-of-fold calibration for any scikit-learn classifier."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Self

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils import _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils._metadata_requests import _routing_enabled
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_method_params,
    _num_samples,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
)

from calibrant.data.copies import independent_size
from calibrant.data.scaling import fit_scaling
from calibrant.data.table_forms import column_names
from calibrant.estimators.advice import advice_for
from calibrant.estimators.folds import (
    Splits,
    dealt_splits,
    fold_count,
    group_numbers,
    named_splits,
    near_groups,
)
from calibrant.estimators.reading import as_table, as_weights, encode
from calibrant.estimators.selective import SelectiveMixin
from calibrant.estimators.targets import as_targets
from calibrant.methods.members import Rows, held_out_loss
from calibrant.methods.pool import fit_pool
from calibrant.posthoc import make_calibrator

_MANY = 50
"""With more classes, a full matrix has too many entries to be worth fitting."""


class CrossCalibrated(SelectiveMixin, MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """Calibrate any scikit-learn classifier with its own out-of-fold predictions.

    The classifier is cloned and fitted once per fold. A calibrator is fitted to the out-of-fold log-probabilities of
    all rows, followed by the last step of :func:`calibrant.methods.pool.fit_pool`,

    ``p(x) = (1 − λ)·softmax(w·ℓ(x) + b) + λ/C``,

    where ℓ are the calibrator's log-probabilities. A classifier that is no better than the class frequencies is
    replaced by them (w = 0), and confidence never exceeds what the number of rows can support. Compared with
    :class:`sklearn.calibration.CalibratedClassifierCV`, one calibration is fitted to all rows instead of one per fold,
    its parameters have a prior, and copies of a row are never on both sides of a fold.

    Parameters
    ----------
    estimator : scikit-learn classifier, optional
        It needs ``predict_proba`` or ``decision_function``. None: ``HistGradientBoostingClassifier(learning_rate=0.03,
        max_iter=1000, early_stopping=True)``.
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
        temperature scaling; with more rows it learns more.
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
    pool_ : :class:`calibrant.methods.pool.Pool`
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

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_samples, n_features)
            In any form that the estimator accepts.
        y : array-like of shape (n_samples,)
            Labels of two or more classes.
        sample_weight : array-like of shape (n_samples,), optional
            For the calibration, and for the estimator if its ``fit`` accepts weights. Rows of weight zero are ignored.
        groups : array-like of shape (n_samples,), optional
            Rows with equal values (one patient, one recording) are held out together; passed on to a splitter.
        **fit_params
            For the estimator's ``fit``; with scikit-learn's metadata routing, for every object that requested them.
        """
        X, y = indexable(as_table(X), as_targets(y))
        y = column_or_1d(y, warn=True)
        if not len(y):
            raise ValueError("Found array with 0 sample(s); give at least two rows of different classes.")
        check_classification_targets(y)
        weights = as_weights(sample_weight, X) if sample_weight is not None else None
        self.classes_, codes = encode(y, weights)
        estimator = self._get_estimator()
        to_fit, to_split = self._routed(estimator, weights, groups, fit_params)
        used = np.ones(len(y), dtype=bool) if weights is None else weights > 0
        splits, together = self._splits(X, y, codes, used, groups, to_split)
        fit_one = delayed(_fit_one)
        train_rows = [train for train, _ in splits] + [np.flatnonzero(used)] * (not self.ensemble)
        models = Parallel(n_jobs=self.n_jobs)(fit_one(clone(estimator), X, y, rows, to_fit) for rows in train_rows)
        sizes = [len(rows) for rows in train_rows]
        held = self._held_out(X, models, sizes, splits, len(y))
        known = np.flatnonzero(~np.isnan(held).any(axis=1))
        counted = np.ones(len(known)) if weights is None else weights[known]
        together = None if together is None else together[known]
        size = independent_size(codes[known], softmax(held[known], axis=1), together)
        counted = counted * (size / counted.sum())
        proba = all(hasattr(model, "predict_proba") for model in models)
        self._scale = 1.0 if proba else _scale(Rows(held[known], codes[known], counted, len(self.classes_)))
        self.calibrator_ = self._get_calibrator()
        if self.calibrator_ is not None:
            self.calibrator_.fit(log_softmax(self._scale * held[known], axis=1), codes[known], counted)
        log_probs = self._log_probs(held[known])
        self.pool_ = fit_pool(log_probs[None], codes[known], counted, groups=together)
        self.oof_labels_, self.oof_groups_ = codes, group_numbers(groups, X)
        self.oof_proba_ = np.full(held.shape, np.nan)
        self.oof_proba_[known] = self.pool_.probs(log_probs[None])
        self.estimators_ = models if self.ensemble else models[-1:]
        self._sizes = sizes if self.ensemble else sizes[-1:]
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(models[0], name):
                setattr(self, name, getattr(models[0], name))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(class | x), one column for each entry of ``classes_``."""
        check_is_fitted(self)
        X = as_table(X)
        scores = np.zeros((_num_samples(X), len(self.classes_)))
        for model, size in zip(self.estimators_, self._sizes, strict=True):
            scores += np.maximum(_scores(model, X, self.classes_, size), self._least) / len(self.estimators_)
        return self.pool_.probs(self._log_probs(scores)[None])

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return np.log(self.predict_proba(X))

    def save(self, path: str | os.PathLike[str], *, about: Mapping[str, Any] | None = None) -> None:
        """Write the fitted classifier to one file: arrays as safetensors, the rest as JSON in its header.

        This works for ``HistGradientBoostingClassifier`` (the default), ``LogisticRegression``, and pipelines of these
        with ``StandardScaler`` or :class:`calibrant.data.TableEncoder`. Any other estimator raises a ValueError.
        ``about`` holds your own notes for the file's header: text and numbers.
        """
        from calibrant.estimators.persistence import save_classifier

        save_classifier(self, path, about=about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file written by :meth:`save`. Loading executes no code, and predictions are equal up to rounding.

        Boosted trees are read as models that only predict, and sum their trees in another order; ``fit`` trains new
        ones.
        """
        from calibrant.estimators.persistence import load_as

        return load_as(cls, path)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing, as in :class:`sklearn.calibration.CalibratedClassifierCV`."""
        router = MetadataRouter(owner=self)
        router.add_self_request(self)
        to_fit = MethodMapping().add(caller="fit", callee="fit")
        router.add(estimator=self._get_estimator(), method_mapping=to_fit)
        if hasattr(self.cv, "split"):
            router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        return router

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        own = get_tags(self._get_estimator()).input_tags
        tags.input_tags.sparse = own.sparse
        tags.input_tags.allow_nan = own.allow_nan
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "pool_")

    def _log_probs(self, scores: np.ndarray) -> np.ndarray:
        """Return the calibrator's log-probabilities for the models' mean scores."""
        found = log_softmax(self._scale * scores, axis=1)
        return found if self.calibrator_ is None else np.log(np.maximum(self.calibrator_.predict_proba(found), 1e-300))

    def _get_calibrator(self) -> Any:
        if not isinstance(self.calibrator, str):
            return None if self.calibrator is None else clone(self.calibrator)
        auto = "structured-matrix" if len(self.classes_) <= _MANY else "vector"
        return make_calibrator(auto if self.calibrator == "auto" else self.calibrator)

    def _get_estimator(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        trees = HistGradientBoostingClassifier(learning_rate=0.03, max_iter=1000, early_stopping=True, random_state=0)
        return trees.set_fit_request(sample_weight=True) if _routing_enabled() else trees

    def _routed(
        self, estimator: Any, weights: np.ndarray | None, groups: Any, fit_params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metadata for the estimator's ``fit`` and for the splitter's ``split``."""
        if _routing_enabled():
            routed = process_routing(self, "fit", sample_weight=weights, groups=groups, **fit_params)
            return dict(routed.estimator.fit), dict(routed.splitter.split) if "splitter" in routed else {}
        to_fit = dict(fit_params)
        if weights is not None and has_fit_parameter(estimator, "sample_weight"):
            to_fit["sample_weight"] = weights
        return to_fit, {} if groups is None else {"groups": groups}

    def _splits(
        self, X: Any, y: np.ndarray, codes: np.ndarray, used: np.ndarray, groups: Any, to_split: dict[str, Any]
    ) -> tuple[Splits, np.ndarray | None]:
        """Return each fold's training and held-out rows (none of weight zero), and which rows belong together."""
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        numbers, rows = group_numbers(groups, X), np.flatnonzero(used)
        if not isinstance(self.cv, Integral):
            return named_splits(self.cv, X, y, used=used, **to_split), numbers
        number, own = fold_count(self.cv), _safe_indexing(X, rows)
        named = near_groups(_standardised(own), None, seed=seed, stacklevel=4) if numbers is None else numbers[rows]
        splits, found = dealt_splits(own, codes[rows], number, seed=seed, groups=named)
        together = None if found is None else np.zeros(len(y), dtype=int)
        if together is not None:
            together[rows] = found
        return tuple((rows[a], rows[b]) for a, b in splits), together

    def _held_out(self, X: Any, models: list[Any], sizes: list[int], splits: Splits, rows: int) -> np.ndarray:
        """Return the mean out-of-fold scores of each row, (n, C); NaN for rows that every model was trained on.

        A probability of 0 becomes half of the smallest positive one: a forest of 100 trees cannot predict 1e-10.
        """
        total, count = np.zeros((rows, len(self.classes_))), np.zeros((rows, 1))
        judged = [(m, n, held) for m, n, (_, held) in zip(models, sizes, splits, strict=False) if len(held)]
        each = [_scores(m, _safe_indexing(X, held), self.classes_, n) for m, n, held in judged]
        self._least = min(float(s[np.isfinite(s)].min()) for s in each) - np.log(2)
        for scores, (_, _, held) in zip(each, judged, strict=True):
            total[held] += np.maximum(scores, self._least)
            count[held] += 1
        return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _fit_one(estimator: Any, X: Any, y: np.ndarray, rows: np.ndarray, params: dict[str, Any]) -> Any:
    """Fit a clone to some of the rows; if they have only one class, return a classifier that always predicts it."""
    own, labels = _safe_indexing(X, rows), y[rows]
    if len(np.unique(labels)) < 2:
        return DummyClassifier(strategy="prior").fit(own, labels)
    try:
        return estimator.fit(own, labels, **_check_method_params(X, params=params, indices=rows))
    except (ValueError, TypeError) as error:
        if advice := advice_for(own, estimator, error):
            reason = " ".join(str(error).split()).split(". ")[0][:200].rstrip(".")
            raise ValueError(f"{advice} The model itself reports: {reason}.") from error
        raise


def _standardised(X: Any) -> np.ndarray | None:
    """Return numeric inputs as an array for the search for near copies; None for other inputs."""
    if issparse(X) or column_names(X) is not None or hasattr(X, "iloc"):
        return None
    values = np.asarray(X)
    if values.dtype.kind not in "fiu" or values.ndim != 2 or not np.isfinite(values).all():
        return None
    return fit_scaling(values.astype(np.float64)).apply(values).numpy()


def _scores(model: Any, X: Any, classes: np.ndarray, size: int) -> np.ndarray:
    """Return the log-probabilities or decision values of one model, (n, C).

    Classes that are missing from its ``size`` training rows get the probability of half a row.
    """
    if hasattr(model, "predict_proba"):
        with np.errstate(divide="ignore"):
            found = np.log(np.asarray(model.predict_proba(X), dtype=np.float64))
        missing = np.log(0.5 / max(size, 1))
    elif not hasattr(model, "decision_function"):
        raise ValueError(
            f"estimator must be a classifier with predict_proba or decision_function; got {type(model).__name__}, "
            "which has neither."
        )
    else:
        found = np.asarray(model.decision_function(X), dtype=np.float64)
        if found.ndim == 1:
            found = np.stack([np.zeros_like(found), found], axis=1)
        missing = found.min()
    columns = np.searchsorted(classes, model.classes_)
    if found.shape[1] != len(columns):
        raise ValueError(
            f"{type(model).__name__} must give one score for each of the {len(columns)} classes; got {found.shape[1]} "
            "columns. Use decision_function_shape='ovr' in support vector machines."
        )
    scores = np.full((len(found), len(classes)), missing)
    scores[:, columns] = found
    return scores


def _scale(held: Rows) -> float:
    """Return the factor with the lowest loss that turns decision values into logits, within a factor of 100."""
    scores = held.inputs
    unit = max(float(np.abs(scores - scores.mean(axis=1, keepdims=True)).mean()), 1e-12)
    found = minimize_scalar(
        lambda v: held_out_loss(np.exp(v) / unit * scores, held), bounds=(np.log(0.1), np.log(10.0)), method="bounded"
    )
    return float(np.exp(found.x) / unit)
