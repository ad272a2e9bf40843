"""Classifiers on disk: arrays as safetensors, the rest as JSON in its header. Loading executes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from sklearn.utils.validation import check_is_fitted

from calibrant._version import __version__
from calibrant.estimators.base import NetworkClassifier
from calibrant.estimators.bo4sc import BO4SCClassifier
from calibrant.estimators.networks import ACTIVATIONS, Perceptron
from calibrant.estimators.scaling import Scaling
from calibrant.estimators.self_calibrated import SelfCalibratedClassifier
from calibrant.methods import Mixture

FORMAT = "calibrant.estimators"
FORMAT_VERSION = 2
CLASSIFIERS: dict[str, type[NetworkClassifier]] = {c.__name__: c for c in (BO4SCClassifier, SelfCalibratedClassifier)}
_KEY = "calibrant"

Arrays = dict[str, np.ndarray]


def save(classifier: NetworkClassifier, path: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to one file; :func:`load` reads it back with equal predictions, bit for bit."""
    name = type(classifier).__name__
    if CLASSIFIERS.get(name) is not type(classifier):
        raise TypeError(f"save writes {' and '.join(CLASSIFIERS)}; got {name}.")
    check_is_fitted(classifier)
    params = classifier.get_params(deep=False)
    if isinstance(params["random_state"], np.random.RandomState):
        params["random_state"] = None
    state = {key: value for key, value in vars(classifier).items() if key.endswith("_") and not key.startswith("_")}
    arrays: Arrays = {}
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "calibrant": __version__,
        "classifier": name,
        "params": {key: _pack(value, f"params.{key}", arrays) for key, value in params.items()},
        "state": {key: _pack(value, key, arrays) for key, value in state.items()},
    }
    save_file(arrays, str(path), metadata={_KEY: json.dumps(header, allow_nan=False)})


def load(path: str | os.PathLike[str]) -> NetworkClassifier:
    """Read what :func:`save` wrote; a ValueError says what is wrong with any other file."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Give the path that was given to save.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = _header((file.metadata() or {}).get(_KEY), path)
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is not a dict)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a classifier: it is not a safetensors file ({error}). Give a file that save wrote."
        ) from None
    try:
        params = {key: _unpack(value, arrays) for key, value in header["params"].items()}
        classifier = CLASSIFIERS[header["classifier"]](**params)
        for key, value in header["state"].items():
            setattr(classifier, key, _unpack(value, arrays))
        _check_shapes(classifier)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{path} is damaged: its header does not fit the classifier ({error!r}). Save it again."
        ) from None
    return classifier


def _header(text: str | None, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(text) if text is not None else None
    except json.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file but not a classifier: its header does not name the format {FORMAT}. "
            "Give a file that save wrote."
        )
    if header.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has version {header.get('version')} of the format {FORMAT} (written by calibrant "
            f"{header.get('calibrant')}); this is calibrant {__version__}, which reads version {FORMAT_VERSION}. "
            "Install the calibrant that wrote it, or fit and save again."
        )
    if header.get("classifier") not in CLASSIFIERS:
        raise ValueError(
            f"{path} holds a {header.get('classifier')!r}, unknown to calibrant {__version__}. "
            f"It knows: {', '.join(CLASSIFIERS)}."
        )
    return header


def _pack(value: Any, key: str, arrays: Arrays) -> dict[str, Any]:
    """Move arrays into ``arrays`` and leave a reference to each in a tree that JSON can hold."""
    if isinstance(value, Mixture):
        tree = [[*([t.numpy() for t in part] for part in (n.weights, n.biases)), n.activation] for n in value.networks]
        bias = None if value.bias is None else value.bias.numpy()
        parts = [_pack(tree, f"{key}.networks", arrays), _pack(bias, f"{key}.bias", arrays)]
        return {"mixture": [*parts, float(value.temperature), float(value.lapse), value.pool]}
    if isinstance(value, Scaling):
        return {"scaling": [_pack(part, f"{key}.{k}", arrays) for k, part in enumerate(value)]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays[key] = np.ascontiguousarray(value)
        return {"array": key}
    if isinstance(value, np.ndarray) and all(isinstance(v, str) for v in value.tolist()):
        return {"texts": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, dict):
        return {"dict": {name: _pack(item, f"{key}.{name}", arrays) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{key}.{i}", arrays) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}  # JSON writes the shortest decimal that reads back as the same float64
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise ValueError(f"{key} is {kind}, which save cannot write: use numbers, text, truth values or None.")


def _unpack(tree: dict[str, Any], arrays: Arrays) -> Any:
    kind, value = next(iter(tree.items()))
    if kind == "mixture":
        networks = [
            Perceptron(tuple(map(torch.from_numpy, weights)), tuple(map(torch.from_numpy, biases)), activation)
            for weights, biases, activation in _unpack(value[0], arrays)
        ]
        bias, temperature, lapse, pool = _unpack(value[1], arrays), float(value[2]), float(value[3]), value[4]
        return Mixture(tuple(networks), temperature, None if bias is None else torch.from_numpy(bias), lapse, pool)
    if kind == "scaling":
        return Scaling(*(_unpack(part, arrays) for part in value))
    if kind == "array":
        return arrays[value]
    if kind == "texts":
        return np.array(value, dtype=np.dtype(tree["dtype"]))
    if kind == "dict":
        return {name: _unpack(item, arrays) for name, item in value.items()}
    if kind in ("list", "tuple"):
        items = [_unpack(item, arrays) for item in value]
        return tuple(items) if kind == "tuple" else items
    if kind == "value":
        return value
    raise ValueError(f"unknown kind {kind!r}")


def _check_shapes(classifier: Any) -> None:
    """A file that was cut or patched must not predict nonsense."""
    if not (classifier.model_.temperature > 0 and 0 <= classifier.model_.lapse <= 1):
        raise ValueError("temperature or lapse is out of range")
    for network in classifier.model_.networks:
        widths = [w.shape[1] for w in network.weights] + [len(classifier.classes_)]
        fits = [w.shape[0] for w in network.weights] == widths[1:] == [len(b) for b in network.biases]
        if not fits or widths[0] != classifier.n_features_in_ or len(classifier.scaling_.mean) != widths[0]:
            raise ValueError("the layers of a network do not fit together")
        if network.activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {network.activation!r}")
