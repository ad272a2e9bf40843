"""Saving and loading classifiers, in the format of :mod:`calibrant.base.files`."""

from __future__ import annotations

import os
from dataclasses import fields
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from calibrant.base.files import Arrays, Format, Tree, pack, unpack
from calibrant.base.fitted import fitted_state
from calibrant.data import TableEncoder
from calibrant.data.projection import Projection
from calibrant.data.scaling import Scaling
from calibrant.estimators.base import NetworkClassifier
from calibrant.estimators.bo4sc import BO4SCClassifier
from calibrant.estimators.networks import Frozen, from_tree, to_tree
from calibrant.estimators.selective import check_out_of_fold
from calibrant.estimators.self_calibrated import SelfCalibratedClassifier
from calibrant.methods import BO4SC, Mixture
from calibrant.methods.blend import KINDS, Blend
from calibrant.pool.pool import Pool

CLASSIFIERS: dict[str, type[NetworkClassifier]] = {c.__name__: c for c in (BO4SCClassifier, SelfCalibratedClassifier)}
FORMAT = Format("classifier", CLASSIFIERS, "save or `calibrant train`")
_COLUMNS = 10_000
"""Up to this many inputs, a network is tried; for more, its file must hold a parameter for each input."""


def save_classifier(classifier: NetworkClassifier, path: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to one file; :func:`load_classifier` reads it back with the same predictions."""
    name = type(classifier).__name__
    if CLASSIFIERS.get(name) is not type(classifier):
        raise TypeError(f"classifier must be one of {', '.join(CLASSIFIERS)}; got {name}.")
    check_is_fitted(classifier)
    arrays: Arrays = {}
    params = classifier.get_params(deep=False)
    if isinstance(params["random_state"], np.random.RandomState):
        params["random_state"] = None
    if not isinstance(params.get("cv"), Integral):
        params.pop("cv", None)
    if (method := params.pop("method", None)) is not None:
        params["method"] = {field.name: getattr(method, field.name) for field in fields(method)}
    state = fitted_state(classifier)
    state |= {"model_": _plain_model(state["model_"]), "encoder_": _plain_encoder(state["encoder_"])}
    parts = {"params": _packed(params, "params.", arrays), "state": _packed(state, "", arrays)}
    FORMAT.write(path, name, arrays, **parts)


def load_classifier(path: str | os.PathLike[str]) -> NetworkClassifier:
    """Read a classifier that its ``save`` wrote; any other file raises a ValueError that says what is wrong."""
    classifier: NetworkClassifier = FORMAT.read(path, _build)
    return classifier


def _packed(values: dict[str, Any], prefix: str, arrays: Arrays) -> dict[str, Tree]:
    return {key: pack(value, prefix + key, arrays) for key, value in values.items()}


def _build(kind: type, header: dict[str, Any], arrays: Arrays) -> NetworkClassifier:
    params, state = ({k: unpack(v, arrays) for k, v in header[part].items()} for part in ("params", "state"))
    for key in state:
        if key.startswith("_") or not key.endswith("_"):  # it could hide a method
            raise ValueError(f"{key!r} is not a fitted attribute; their names end with an underscore")
    if "method" in params:
        params["method"] = BO4SC(**params["method"])
    classifier: NetworkClassifier = kind(**params)
    encoder, projection = state["encoder_"], state["projection_"]
    state |= {
        "model_": _model(**state["model_"]),
        "scaling_": Scaling(*state["scaling_"]),
        "encoder_": None if encoder is None else TableEncoder.from_json(encoder["json"], encoder["arrays"]),
        "projection_": None if projection is None else Projection(*projection),
    }
    for key, value in state.items():
        setattr(classifier, key, value)
    _check(classifier)
    return classifier


def _plain_encoder(encoder: TableEncoder | None) -> dict[str, Any] | None:
    arrays: Arrays = {}
    return None if encoder is None else {"json": encoder.to_json(arrays), "arrays": arrays}


def _plain_model(model: Mixture | Blend) -> dict[str, Any]:
    """Convert a classifier of frozen members to arrays, numbers and text."""
    if isinstance(model, Mixture):
        return {"networks": [to_tree(network.module) for network in model.networks], **model.link}
    others = {name: {f.name: getattr(stored, f.name) for f in fields(stored)} for name, stored in model.others.items()}  # type: ignore[arg-type]
    mixture = None if model.mixture is None else _plain_model(model.mixture)
    return {"mixture": mixture, "others": others, "pool": model.pool._asdict()}


def _model(**parts: Any) -> Mixture | Blend:
    if "others" in parts:
        others = {name: KINDS[name].model(**arrays) for name, arrays in parts["others"].items()}
        mixture = None if parts["mixture"] is None else _model(**parts["mixture"])
        assert mixture is None or isinstance(mixture, Mixture)
        return Blend(mixture, others, Pool(**parts["pool"]))
    return Mixture.of_link(tuple(Frozen(from_tree(network)) for network in parts.pop("networks")), **parts)


def _check(classifier: Any) -> None:
    """Raise an error if the parts of a file do not fit together, so that a damaged file cannot predict nonsense."""
    model, scaling, encoder = classifier.model_, classifier.scaling_, classifier.encoder_
    projection = classifier.projection_
    columns = classifier.n_features_in_ if encoder is None else len(encoder.get_feature_names_out())
    if projection is not None:
        if projection.axes.shape != (projection.columns, projection.width):
            raise ValueError(f"the projection must have {projection.width} axes of {projection.columns} columns")
        columns -= projection.columns
    if not scaling.mean.shape == scaling.scale.shape == (columns,):
        raise ValueError(f"scaling must have a mean and a scale for each of {columns} columns")
    if any(part is not None and part.shape != (columns,) for part in (scaling.missing, scaling.categories)):
        raise ValueError(f"scaling must say for each of {columns} columns what it holds")
    classes = len(classifier.classes_)
    features = scaling.width + (0 if projection is None else projection.width)
    sparse = None if projection is None else scaling.width + projection.columns
    check_out_of_fold(classifier)
    mixture = model
    if isinstance(model, Blend):
        _check_blend(model, features, sparse, classes)
        mixture = model.mixture
    if mixture is None:
        return
    if mixture.bias is not None and mixture.bias.shape != (classes,):
        raise ValueError(f"bias must have one entry for each of {classes} classes, not shape {(*mixture.bias.shape,)}")
    for network in mixture.networks:
        if features > max(_COLUMNS, sum(parameter.numel() for parameter in network.module.parameters())):
            raise ValueError(f"a network has too few parameters for {features} inputs")
        try:
            shape = tuple(network.logits(torch.zeros(1, features, device="cpu")).shape)
        except (RuntimeError, AttributeError, IndexError) as error:
            raise ValueError(f"the layers of a network do not fit together: {error}") from None
        if shape != (1, classes):
            raise ValueError("the layers of a network do not fit together")


def _check_blend(blend: Blend, features: int, sparse: int | None, n_classes: int) -> None:
    weights, bias, lapse = blend.pool
    if weights.shape != (len(blend.members),) or not (weights >= 0).all() or not 0 <= lapse <= 1:
        raise ValueError("the pool's weights or lapse are out of range")
    if bias.shape != (n_classes,):
        raise ValueError(f"the pool's bias must have one entry for each of {n_classes} classes")
    for member in blend.others.values():
        member.check(features, n_classes, sparse)
