"""The base class of the network classifiers: input checks, training, prediction, rejection and suspect labels."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calibrant.base.device import resolve_device
from calibrant.base.fitted import unfitted
from calibrant.base.labels import class_columns, warn_of_other_order
from calibrant.base.settings import check_whole, shown
from calibrant.bilevel import Callback
from calibrant.bilevel.callbacks import as_callbacks
from calibrant.data.splits.exact_copies import joined
from calibrant.estimators.folds import Splits, group_numbers, near_groups
from calibrant.estimators.memory import check_memory
from calibrant.estimators.networks import freeze
from calibrant.estimators.reading import (
    Inputs,
    Preparation,
    as_weights,
    digest,
    encode,
    hold_out,
    read,
    warn_of_class_weight,
)
from calibrant.estimators.selective import RejectMixin
from calibrant.methods import Fitted, Method, Samples, Task, suspicion
from calibrant.methods.blend import Blend
from calibrant.methods.crossfit.folds import copies_of
from calibrant.methods.fit.guards import Progress

WHOLE = ("steps", "epochs", "batch_size", "folds", "repeats", "last")
SURE = 1.96
"""How many standard errors the mean gain over class frequencies must be above 0 (a 95 % interval)."""
POSITIVE = ("learning_rate", "outer_learning_rate", "also_learning_rate", "alpha")


class NetworkClassifier(RejectMixin, ClassifierMixin, BaseEstimator):
    """Base class. A subclass gives its method in ``_base``, and stores the learned values as attributes in ``_keep``.

    A parameter with the name of a field of the method sets this field. ``hidden_layer_sizes``, the name in
    scikit-learn, sets ``hidden``.
    """

    hidden_layer_sizes: Any
    class_weight: Any
    text_columns: Any
    validation_fraction: float
    random_state: Any
    device: str
    verbose: bool

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train the classifier. A new fit replaces an earlier one; a failed fit leaves the classifier unchanged.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (n_samples, n_features)
            Numbers, which can be missing (NaN or None). A data frame can also have categories, free text, booleans and
            dates; :class:`calibrant.data.TableEncoder` describes how they are encoded. If the numbers of a column are
            codes, give it pandas' category type. Numbers are scaled to mean 0 and variance 1 on the training part.
            Outliers are pulled in, and constant columns are dropped. A missing number becomes the mean, and an
            indicator column marks it. A sparse matrix of at most 500 columns becomes a dense array. With more
            columns, linear models see all of them, and networks and trees see a projection on 128 axes; a missing
            number counts as 0.
        y : array-like of shape (n_samples,)
            Labels of two or more classes: strings, integers or booleans.
        sample_weight : array-like of shape (n_samples,), optional
            Nonnegative weights. Rows of weight zero are ignored.
        groups : array-like of shape (n_samples,), optional
            Rows with equal values (one patient, one recording) are held out together, and so are exact copies of a row.
            Near copies are too, with a warning, if there are many of them and ``groups`` are not given. Folds that you
            give yourself are not changed.
        X_val, y_val, sample_weight_val : optional
            Your own validation samples, for example with clean labels if those in ``y`` are doubtful.
        callbacks : sequence of :class:`calibrant.bilevel.Callback`
            Called between outer steps.
        """
        warn_of_other_order(X, y, "X and y")
        fresh = unfitted(self)
        fresh._fit(X, y, sample_weight, groups, (X_val, y_val, sample_weight_val), callbacks)
        self.__dict__ = fresh.__dict__
        return self

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, validation: tuple[Any, Any, Any], callbacks: Any
    ) -> None:
        """Train an unfitted classifier; after an error it may be partly fitted, so ``fit`` calls this on a copy."""
        callbacks = as_callbacks(callbacks)
        X, y = read(self, X, y, reset=True)
        check_classification_targets(y)
        weights = as_weights(sample_weight, y, self.class_weight, y)
        classes, codes = encode(y, weights)
        if self.class_weight is not None:
            warn_of_class_weight(classes, codes, sample_weight, weights)
        if X.sparse is not None:
            check_memory(X, len(classes))
        numbers = group_numbers(groups, y)
        validation_rows = self._given_validation(*validation, classes, wide=X.sparse is not None)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        rows, held = np.arange(len(y)) if weights is None else np.flatnonzero(weights), np.empty(0, dtype=int)
        splits = self._named_splits(X.dense, y, groups, rows)

        def prepared(rows: np.ndarray) -> tuple[Preparation, Samples]:
            """The preparation of these rows, and all rows prepared with it."""
            preparation = Preparation.of(
                _take(X, rows), None if weights is None else weights[rows], self.encoder_, seed
            )
            return preparation, preparation.samples(X, codes, weights, numbers)

        preparation, samples = prepared(rows)
        train = _take(samples, rows)
        near = near_groups(_compared(train), groups, seed=seed) if splits is None else None
        if validation_rows is None and self._holds_out():
            together = joined(joined(None if numbers is None else numbers[rows], near), copies_of(train))
            train_places, held_places = hold_out(codes[rows], self.validation_fraction, seed=seed, groups=together)
            rows, held = rows[train_places], rows[held_places]
            preparation, samples = prepared(rows)
            train = _take(samples, rows)
        elif near is not None:
            train = replace(train, groups=torch.from_numpy(near))
        val = samples[held] if len(held) else None
        if validation_rows is not None:
            val = preparation.samples(*validation_rows)
        task = Task(train, val, len(classes), seed, splits=splits)
        fitted = self._train(task, callbacks)
        self.classes_, self.model_ = classes, freeze(fitted)
        self.scaling_, self.projection_ = preparation
        self.train_indices_, self.validation_indices_ = rows, held
        self.training_digest_ = digest(X, codes)
        self.history_ = {name: values.double().numpy() for name, values in fitted.extras["history"].items()}
        self._keep(fitted, samples)
        self.learned_ = self._learned(samples, val)

    def _read(self, X: Any, *y: Any) -> Any:
        """Return inputs and labels in the form of the training rows, after scikit-learn's checks."""
        return read(self, X, *y, reset=False, wide=self.projection_ is not None)

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(class | x), one column for each entry of ``classes_``."""
        check_is_fitted(self)
        return self._probs(*self._preparation.apply(self._read(X)))

    def suspects(
        self, X: Any = None, y: Any = None, n: int | None = None, *, return_scores: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the rows whose labels look wrong, most suspicious first.

        Parameters
        ----------
        X, y : optional
            The training data (the default), which are scored by ``suspicion_``. Other data are scored by
            ``1 − p(y | x)`` alone.
        n : int, optional
            How many to list. By default, all with a suspicion above ½, and none if nothing was learned (``learned_`` is
            False), because the suspicion is then that of the class frequencies.
        return_scores : bool
            Also return the suspicions of the listed samples, from 0 to 1.

        Returns
        -------
        indices : array of int
            Row numbers in X. With ``return_scores``, a pair of these and an array of their scores.

        Notes
        -----
        If the suspicion ``1 − p(y | x)`` is above ½, the networks give the label a probability below ½. This is the
        probability of another class at this x, not of a mistake: where classes overlap, correct labels can also have a
        high suspicion. Only the label-noise candidate of :class:`SelfCalibratedClassifier` gives the probability that a
        training label is wrong; :class:`BO4SCClassifier` multiplies p by the label's learned weight.
        """
        check_is_fitted(self)
        if (X is None) != (y is None):
            raise ValueError("suspects needs both X and y, or neither (the training data); got only one of them.")
        if n is not None and (not isinstance(n, Integral) or n < 0):
            raise ValueError(f"n must be a whole number of samples, or None; got {shown(n)}.")
        scores = self.suspicion_
        if X is not None:
            X, y = self._read(X, y)
            codes = class_columns(y, self.classes_)
            if digest(X, codes) != self.training_digest_:
                scores = self._suspicion(self._preparation.samples(X, codes))
        if n is None:
            n = int((scores > 0.5).sum()) if self.learned_ else 0
        listed = np.argsort(-scores, kind="stable")[:n]
        return (listed, scores[listed]) if return_scores else listed

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted classifier to one file: arrays as safetensors, the rest as JSON in its header.

        Parameters that are a RandomState instance or a splitter cannot be written; they are read back as None.
        """
        from calibrant.estimators.persistence import save_classifier

        save_classifier(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file written by :meth:`save`. Loading executes no code, and predictions are equal bit for bit."""
        from calibrant.estimators.persistence import load_classifier

        classifier = load_classifier(path)
        if not isinstance(classifier, cls):
            name = type(classifier).__name__
            raise ValueError(f"{path} holds a {name}, not a {cls.__name__}: use {name}.load.")
        return classifier

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        input_tags = tags.input_tags
        input_tags.sparse = input_tags.allow_nan = input_tags.string = input_tags.categorical = True
        return tags

    def _named_splits(self, X: np.ndarray, y: np.ndarray, groups: Any, rows: np.ndarray) -> Splits | None:
        """Return the folds of the user's splitter, as positions in ``rows``; None if the method makes the folds."""
        return None

    def _holds_out(self) -> bool:
        """Whether training needs a validation part, which is then held out if none is given."""
        raise NotImplementedError

    def _keep(self, fitted: Fitted, samples: Samples) -> None:
        """Set the learned attributes other than the networks, including ``suspicion_`` for all samples."""
        raise NotImplementedError

    def _learned(self, samples: Samples, val: Samples | None) -> bool:
        """Whether the log-loss of rows that were held out is below that of the class frequencies (95 % interval)."""
        out_of_fold: np.ndarray = getattr(self, "oof_proba_", np.empty((0, 1)))
        rows = np.flatnonzero(np.isfinite(out_of_fold).all(axis=1))
        if len(rows):
            probs, held = out_of_fold[rows], samples[rows]
        elif val is not None:
            probs, held = self._probs(val.inputs, val.sparse), val
        else:
            return True
        codes, n = held.labels.numpy(), len(held)
        weights = np.ones(n) if held.sample_weight is None else held.sample_weight.numpy()
        shares = np.bincount(codes, weights, minlength=len(self.classes_))
        chosen = probs[np.arange(n), codes]
        gains = np.log(np.maximum(chosen, np.finfo(float).tiny)) - np.log((shares / shares.sum())[codes])
        groups = np.arange(n) if held.groups is None else np.unique(held.groups, return_inverse=True)[1]
        per_group = np.bincount(groups, gains * weights)
        return bool(per_group.sum() > SURE * math.sqrt(len(per_group)) * per_group.std())

    def _base(self) -> Any:
        """The method before the parameters of this estimator set its fields."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """The fields of the method that the parameters of this estimator set."""
        params = self.get_params(deep=False)
        params["hidden"] = params.pop("hidden_layer_sizes")
        return {field.name: params[field.name] for field in fields(self._base()) if field.name in params}

    def _method(self) -> Method:
        """The method with this estimator's settings."""
        base = self._base()
        settings = vars(base) | {name: tuple(v) if isinstance(v, list) else v for name, v in self._settings().items()}
        sizes = settings["hidden"]
        if not isinstance(sizes, Integral | Sequence | np.ndarray) or isinstance(sizes, str):
            raise ValueError(f"hidden_layer_sizes must be a whole number or a tuple of them; got {shown(sizes)}.")
        sizes = (sizes,) if isinstance(sizes, Integral) else tuple(sizes)
        settings["hidden"] = tuple(check_whole("hidden_layer_sizes", size) for size in sizes)
        for name, value in settings.items():
            if value is None and getattr(type(base), name) is None:
                continue
            if name in WHOLE:
                settings[name] = check_whole(name, value)
            elif name in POSITIVE and not (isinstance(value, Real) and 0 < float(value) < math.inf):
                raise ValueError(f"{name} must be a positive number; got {shown(value)}.")
        return replace(base, **settings)

    def _train(self, task: Task, callbacks: Sequence[Callback]) -> Fitted:
        bar = [Progress(type(self).__name__)] if self.verbose else []
        return self._method().fit(task.to(resolve_device(self.device)), callbacks=[*bar, *callbacks])

    def _given_validation(
        self, X: Any, y: Any, sample_weight: Any, classes: np.ndarray, wide: bool
    ) -> tuple[Inputs, np.ndarray, np.ndarray | None] | None:
        """The user's validation rows of positive weight: inputs, class column numbers and weights."""
        if X is None and y is None and sample_weight is None:
            return None
        if X is None or y is None:
            raise ValueError("X_val and y_val must be given together; got only one of them.")
        X, y = read(self, X, y, reset=False, wide=wide)
        codes, weights = class_columns(y, classes, "y_val"), as_weights(sample_weight, y, self.class_weight, y)
        if weights is None:
            return X, codes, None
        rows = np.flatnonzero(weights)
        return X[rows], codes[rows], weights[rows]

    @property
    def _preparation(self) -> Preparation:
        return Preparation(self.scaling_, self.projection_)

    def _probs(self, inputs: Tensor, columns: csr_array | None = None) -> np.ndarray:
        """P(class | x) for prepared inputs."""
        probs = self.model_.probs(inputs, columns) if isinstance(self.model_, Blend) else self.model_.probs(inputs)
        return probs.numpy()

    def _suspicion(self, samples: Samples, weights: np.ndarray | None = None) -> np.ndarray:
        """Return ``1 − w·p(y | x)``; w is 1 if there are no weights, and for rows without a learned weight (NaN)."""
        weights = np.ones(len(samples)) if weights is None else np.nan_to_num(weights, nan=1.0)
        probs = torch.from_numpy(self._probs(samples.inputs, samples.sparse))
        return suspicion(torch.from_numpy(weights), probs, samples.labels).numpy()


def _take(samples: Any, rows: np.ndarray) -> Any:
    """Some of the rows, in increasing order; the same object, without a copy, if these are all rows."""
    return samples if len(rows) == len(samples) else samples[rows]


def _compared(part: Samples) -> np.ndarray:
    """The inputs in which near copies are searched.

    Free text is left out if there are other columns: many rows share a text, such as a job title, and are no copies.
    """
    columns = part.inputs.shape[1] - part.projected
    values: np.ndarray = part.inputs[:, : columns or None].numpy()
    return values
