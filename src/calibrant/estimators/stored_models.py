"""Fitted scikit-learn models as arrays and plain values, for files whose loading executes no code.

The models in :data:`KINDS` can be stored. A stored model predicts what the original predicts, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.extmath import softmax
from sklearn.utils.validation import check_is_fitted, validate_data

from calibrant._files import Arrays, Tree, pack, unpack
from calibrant.data import TableEncoder
from calibrant.methods.forest import Forest


class StoredBoosting(ClassifierMixin, BaseEstimator):
    """The trees of a fitted ``HistGradientBoostingClassifier``, which only predict."""

    forest_: Forest
    classes_: np.ndarray
    n_features_in_: int

    def fit(self, X: Any, y: Any) -> NoReturn:
        """Raise an error: there is nothing left to train."""
        raise TypeError(
            "A model that was read from a file only predicts; fit a HistGradientBoostingClassifier instead."
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(class | x), one column for each entry of ``classes_``."""
        check_is_fitted(self)
        values = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        raw = self.forest_.scores(values)
        if raw.shape[1] > 1:
            return np.asarray(softmax(raw, copy=False))
        second = expit(raw[:, 0])
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable classes."""
        found: np.ndarray = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return found


class Kind(NamedTuple):
    """How one class of models is stored: its fitted values, and the model for values that were read."""

    values: Callable[[Any], dict[str, Any]]
    model: Callable[[dict[str, Any], dict[str, Any]], Any]
    """Takes the parameters and the fitted values."""


_COMMON = ("classes_", "n_features_in_", "feature_names_in_", "n_outputs_", "n_classes_", "class_prior_", "_strategy")
_LINE = ("coef_", "intercept_", "n_iter_", "classes_", "n_features_in_", "feature_names_in_")
_SCALER = ("mean_", "scale_", "var_", "n_samples_seen_", "n_features_in_", "feature_names_in_")


def attributes(kind: type, names: tuple[str, ...]) -> Kind:
    """A kind that is stored by its parameters and some of its attributes."""

    def model(params: dict[str, Any], values: dict[str, Any]) -> Any:
        found = kind(**params)
        for name in names:
            if name in values:
                setattr(found, name, values[name])
        return found

    return Kind(lambda fitted: {name: getattr(fitted, name) for name in names if hasattr(fitted, name)}, model)


def _boosting_values(model: HistGradientBoostingClassifier) -> dict[str, Any]:
    if model.is_categorical_ is not None and np.any(model.is_categorical_):
        raise ValueError(
            "A HistGradientBoostingClassifier with categorical columns cannot be saved. Encode them first: "
            "make_pipeline(calibrant.data.TableEncoder(), HistGradientBoostingClassifier(categorical_features=None))."
        )
    trees = np.arange(model.n_trees_per_iteration_)
    forest = Forest.of(model, len(model._predictors), np.asarray(model._baseline_prediction).ravel(), trees)
    return _forest_values(model, forest)


def _forest_values(model: Any, forest: Forest) -> dict[str, Any]:
    known = {name: getattr(model, name) for name in _COMMON if hasattr(model, name)}
    return {"forest": {f.name: getattr(forest, f.name) for f in fields(forest)}, **known}


def _boosting(params: dict[str, Any], values: dict[str, Any]) -> StoredBoosting:
    found = StoredBoosting()
    found.forest_ = Forest(**values["forest"])
    for name in _COMMON:
        if name in values:
            setattr(found, name, values[name])
    logits = 1 if len(found.classes_) == 2 else len(found.classes_)
    found.forest_.check(found.n_features_in_, logits)
    return found


def _encoder(params: dict[str, Any], values: dict[str, Any]) -> TableEncoder:
    return TableEncoder.from_json(values["json"], values.get("arrays"))


def encoder_values(encoder: TableEncoder) -> dict[str, Any]:
    """A fitted encoder as JSON and arrays."""
    arrays: Arrays = {}
    return {"json": encoder.to_json(arrays), "arrays": arrays}


KINDS: dict[type, Kind] = {
    HistGradientBoostingClassifier: Kind(_boosting_values, _boosting),
    StoredBoosting: Kind(lambda own: _forest_values(own, own.forest_), _boosting),
    LogisticRegression: attributes(LogisticRegression, _LINE),
    DummyClassifier: attributes(DummyClassifier, _COMMON),
    StandardScaler: attributes(StandardScaler, _SCALER),
    TableEncoder: Kind(encoder_values, _encoder),
}
"""The models that can be stored, and pipelines of them."""
_BY_NAME = {kind.__name__: kind for kind in KINDS}


def pack_model(model: Any, key: str, arrays: Arrays, *, fitted: bool = True) -> Tree:
    """Describe a model in a tree that JSON can hold; its arrays go to ``arrays``.

    Without ``fitted`` only the parameters are stored. A model of another class raises a ValueError.
    """
    if type(model) is Pipeline:
        steps = [(name, step) for name, step in model.steps if step not in (None, "passthrough")]
        return {
            "steps": [
                [name, pack_model(step, f"{key}.{place}", arrays, fitted=fitted)]
                for place, (name, step) in enumerate(steps)
            ]
        }
    kind = KINDS.get(type(model))
    if kind is None:
        names = ", ".join(own.__name__ for own in KINDS if own is not StoredBoosting)
        raise ValueError(
            f"Only {names}, and pipelines of these, can be saved without pickle; got a {type(model).__name__}. Keep "
            "this classifier as you keep other scikit-learn models, or use calibrant.SelfCalibratedClassifier."
        )
    params = {} if type(model) is StoredBoosting else model.get_params(deep=False)
    if isinstance(params.get("random_state"), np.random.RandomState):
        params["random_state"] = None
    tree: Tree = {"class": type(model).__name__, "params": pack(params, f"{key}.params", arrays)}
    if fitted:
        tree["values"] = pack(kind.values(model), key, arrays)
    return tree


def unpack_model(tree: Tree, arrays: Arrays) -> Any:
    """The model that :func:`pack_model` described; without fitted values, an unfitted one."""
    if "steps" in tree:
        return Pipeline([(name, unpack_model(step, arrays)) for name, step in tree["steps"]])
    kind, params = _BY_NAME[tree["class"]], unpack(tree["params"], arrays)
    return KINDS[kind].model(params, unpack(tree["values"], arrays)) if "values" in tree else kind(**params)
