"""Classifiers on disk, as :mod:`calibrant._files` keeps them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from calibrant._files import Arrays, Format, Tree, fitted_state, pack, unpack
from calibrant.data import TableEncoder
from calibrant.data.scaling import Scaling
from calibrant.estimators.base import NetworkClassifier
from calibrant.estimators.bo4sc import BO4SCClassifier
from calibrant.estimators.networks import ACTIVATIONS, Perceptron
from calibrant.estimators.self_calibrated import SelfCalibratedClassifier
from calibrant.methods import Mixture

CLASSIFIERS: dict[str, type[NetworkClassifier]] = {c.__name__: c for c in (BO4SCClassifier, SelfCalibratedClassifier)}
FORMAT = Format("calibrant.estimators", 2, "classifier", CLASSIFIERS, "save")
_MIXTURE, _SCALING, _ENCODER = "model_", "scaling_", "encoder_"
POOLS = ("probs", "logits")


def save(classifier: NetworkClassifier, path: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to one file; :func:`load` reads it back with equal predictions, bit for bit."""
    name = type(classifier).__name__
    if CLASSIFIERS.get(name) is not type(classifier):
        raise TypeError(f"save writes {' and '.join(CLASSIFIERS)}; got {name}.")
    check_is_fitted(classifier)
    params = classifier.get_params(deep=False)
    if isinstance(params["random_state"], np.random.RandomState):
        params["random_state"] = None
    arrays: Arrays = {}
    plain: dict[str, Callable[[Any], Any]] = {_MIXTURE: _plain_mixture, _SCALING: tuple, _ENCODER: _plain_encoder}
    state = {key: plain[key](value) if key in plain else value for key, value in fitted_state(classifier).items()}
    FORMAT.write(path, name, arrays, params=_packed(params, "params.", arrays), state=_packed(state, "", arrays))


def load(path: str | os.PathLike[str]) -> NetworkClassifier:
    """Read what :func:`save` wrote; a ValueError says what is wrong with any other file."""
    classifier: NetworkClassifier = FORMAT.read(path, _build)
    return classifier


def _packed(values: dict[str, Any], prefix: str, arrays: Arrays) -> dict[str, Tree]:
    return {key: pack(value, prefix + key, arrays) for key, value in values.items()}


def _build(kind: type, header: dict[str, Any], arrays: Arrays) -> NetworkClassifier:
    classifier: NetworkClassifier = kind(**{key: unpack(value, arrays) for key, value in header["params"].items()})
    state = {key: unpack(value, arrays) for key, value in header["state"].items()}
    for key in state:
        if key.startswith("_") or not key.endswith("_"):  # it might stand in the way of a method
            raise ValueError(f"{key!r} is no fitted attribute, whose names end with an underscore")
    state[_MIXTURE], state[_SCALING] = _mixture(**state[_MIXTURE]), Scaling(*state[_SCALING])
    encoder = state.get(_ENCODER)  # files that were written before there were encoders lack it
    state[_ENCODER] = None if encoder is None else TableEncoder.from_json(encoder)
    for key, value in state.items():
        setattr(classifier, key, value)
    _check(classifier)
    return classifier


def _plain_encoder(encoder: TableEncoder | None) -> str | None:
    return None if encoder is None else encoder.to_json()


def _plain_mixture(mixture: Mixture) -> dict[str, Any]:
    """A mixture of frozen networks as arrays, numbers and text."""
    return {
        "networks": [
            {
                "weights": [w.numpy() for w in network.weights],
                "biases": [b.numpy() for b in network.biases],
                "activation": network.activation,
            }
            for network in mixture.networks
        ],
        "temperature": float(mixture.temperature),
        "bias": None if mixture.bias is None else mixture.bias.numpy(),
        "lapse": float(mixture.lapse),
        "pool": mixture.pool,
    }


def _mixture(*, networks: list[dict[str, Any]], bias: np.ndarray | None, **rest: Any) -> Mixture:
    frozen = [
        Perceptron(
            tuple(map(torch.from_numpy, n["weights"])), tuple(map(torch.from_numpy, n["biases"])), n["activation"]
        )
        for n in networks
    ]
    return Mixture(tuple(frozen), bias=None if bias is None else torch.from_numpy(bias), **rest)


def _check(classifier: Any) -> None:
    """A file that was cut or patched must not predict nonsense."""
    mixture, scaling = classifier.model_, classifier.scaling_
    encoder, classes = classifier.encoder_, len(classifier.classes_)
    features = classifier.n_features_in_ if encoder is None else len(encoder.get_feature_names_out())
    if not (mixture.temperature > 0 and 0 <= mixture.lapse <= 1):
        raise ValueError("temperature or lapse is out of range")
    if mixture.bias is not None and mixture.bias.shape != (classes,):
        raise ValueError(f"bias must have one entry for each of {classes} classes, not shape {(*mixture.bias.shape,)}")
    if mixture.pool not in POOLS:
        raise ValueError(f"pool must be one of {', '.join(map(repr, POOLS))}, not {mixture.pool!r}")
    if not scaling.mean.shape == scaling.scale.shape == (features,):
        raise ValueError(f"scaling must have a mean and a scale for each of {features} columns")
    if any(part is not None and part.shape != (features,) for part in (scaling.missing, scaling.categories)):
        raise ValueError(f"scaling must say for each of {features} columns what it holds")
    if not mixture.networks:
        raise ValueError("there is no network")
    for network in mixture.networks:
        widths = [w.shape[1] for w in network.weights] + [classes]
        fits = [w.shape[0] for w in network.weights] == widths[1:] == [len(b) for b in network.biases]
        if not fits or widths[0] != scaling.width:
            raise ValueError("the layers of a network do not fit together")
        if network.activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {network.activation!r}")
