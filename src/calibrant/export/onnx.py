"""``calibrant.export.to_onnx``: write a fitted classifier, with its calibration, to one ONNX file."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from calibrant.base.settings import check_choice
from calibrant.estimators.base import NetworkClassifier
from calibrant.export.graph import Graph
from calibrant.export.modules import write_module
from calibrant.export.networks import probabilities, scaled
from calibrant.methods import Trained


def to_onnx(
    model: NetworkClassifier | Trained | nn.Module,
    path: str | os.PathLike[str],
    *,
    example: Any = None,
    temperature: float = 1.0,
    dtype: Literal["float32", "float64"] = "float32",
) -> None:
    """Write a model to an ONNX file whose output ``probabilities`` is calibrated, for any number of rows.

    A :class:`~calibrant.SelfCalibratedClassifier` or :class:`~calibrant.BO4SCClassifier` becomes one graph of standard
    operators: scaling, missing values, networks, trees, linear models and the pool. Its input ``X`` is a
    table of numbers (n, columns), with NaN for missing values; its outputs are ``label`` and ``probabilities`` (n,
    classes).

    **The graph does not encode text, categories and dates.** A classifier that was trained on such a table expects the
    output of its encoder, ``clf.encoder_.transform(frame)``: numbers, and codes of categories. The file's metadata hold
    the names of these columns (``columns``) and of the classes (``classes``).

    PyTorch's exporter writes the result of :func:`calibrant.fit`, or any module that returns logits. Its input is
    called ``input`` (entries of a mapping and several arguments keep their names), and its output is
    ``probabilities``. Inputs have the precision of the network, or float32 for networks in half precision. Sequences
    and images may have other sizes than ``example`` if the network accepts them and the written graph gives PyTorch's
    probabilities for a longer and a shorter input. If only the graph refuses them, a warning says so.

    Parameters
    ----------
    model : classifier, Trained or nn.Module
        A fitted classifier, the result of :func:`calibrant.fit`, or a module that returns logits.
    path : path
        Where to write the file.
    example : tensor, mapping or tuple of tensors, optional
        Inputs of the module with two rows or more; needed for modules, not for classifiers.
    temperature : float
        The logits of an nn.Module are divided by it; use ``temperature_`` of :class:`calibrant.posthoc.Temperature`.
    dtype : {"float32", "float64"}
        The type of a classifier's input and of its probabilities. Choose float64 for columns whose values need more
        than seven digits.

    Examples
    --------
    >>> calibrant.export.to_onnx(clf, "model.onnx")                      # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession("model.onnx")              # doctest: +SKIP
    >>> label, probs = session.run(None, {"X": X.astype("float32")})      # doctest: +SKIP
    """
    if temperature != 1.0 and not (isinstance(model, nn.Module) and 0 < temperature < np.inf):
        raise ValueError(
            f"temperature must be a positive number and belongs to an nn.Module; got {temperature} for a "
            f"{type(model).__name__}, which may have its own temperature."
        )
    if isinstance(model, nn.Module | Trained):
        write_module(model, path, example, temperature)
    elif isinstance(model, NetworkClassifier):
        _write_classifier(model, path, dtype)
    else:
        raise TypeError(
            "model must be a SelfCalibratedClassifier, a BO4SCClassifier, a result of calibrant.fit or a torch module; "
            f"got {type(model).__name__}."
        )


def _write_classifier(classifier: Any, path: str | os.PathLike[str], dtype: str) -> None:
    check_choice("dtype", dtype, ("float32", "float64"))
    check_is_fitted(classifier)
    if classifier.projection_ is not None:
        raise ValueError(
            f"ONNX files have dense inputs, but this classifier was fitted to {classifier.projection_.columns} sparse "
            "columns or terms of free text. Use save, or fit to a dense array of fewer columns "
            "(sklearn.decomposition.TruncatedSVD, or calibrant.data.TableEncoder for free text)."
        )
    graph, kind, classes = Graph(), np.dtype(dtype), classifier.classes_
    columns = len(classifier.scaling_.mean)
    table = "X" if dtype == "float64" else graph.cast("X", np.float64)
    probs = probabilities(graph, scaled(graph, table, classifier.scaling_), classifier.model_, len(classes))
    label_names, label_type = _labels(graph, classes)
    label = graph.add("Gather", label_names, graph.add("ArgMax", probs, axis=1, keepdims=0), axis=0)
    graph.write(
        path,
        inputs={"X": (kind, ["n", columns])},
        outputs={
            "label": (label, label_type, ["n"]),
            "probabilities": (graph.cast(probs, kind), kind, ["n", len(classes)]),
        },
        notes={"columns": json.dumps(_columns(classifier)), "classes": json.dumps(classes.tolist())},
    )


def _labels(graph: Graph, classes: np.ndarray) -> tuple[str, Any]:
    """Return the classes as a constant, and their type: numbers, booleans or strings."""
    if classes.dtype.kind in "iuf":
        kind = np.float64 if classes.dtype.kind == "f" else np.int64
        return graph.constant(classes, kind), kind
    if classes.dtype.kind == "b":
        return graph.constant(classes, bool), bool
    return graph.texts([str(value) for value in classes.tolist()]), str


def _columns(classifier: Any) -> list[str]:
    if classifier.encoder_ is not None:
        return [str(name) for name in classifier.encoder_.get_feature_names_out()]
    numbered = [f"x{k}" for k in range(classifier.n_features_in_)]
    return [str(name) for name in getattr(classifier, "feature_names_in_", numbered)]
