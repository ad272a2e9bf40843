"""Other libraries' calibrators behind one signature: (log-probabilities, labels, new log-probabilities) -> probs.

A peer that is not installed has a name but no function, and is marked in the table.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

Peer = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class _Scores(ClassifierMixin, BaseEstimator):
    """A fitted classifier that returns its inputs as scores."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, X: np.ndarray, y: np.ndarray) -> _Scores:
        return self

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        return X[:, 1] - X[:, 0] if self.n_classes == 2 else X

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X.argmax(axis=1)


def _sklearn(method: str) -> Peer:
    def peer(scores: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        model = CalibratedClassifierCV(FrozenEstimator(_Scores(scores.shape[1])), method=method)
        return model.fit(scores, labels).predict_proba(new)

    return peer


def _sklearn_regression(scores: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
    return LogisticRegression(max_iter=2000).fit(scores, labels).predict_proba(new)


def _sklearn_centred(scores: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Matrix scaling on logits, which equal log-probabilities up to a constant per row."""
    centred = [part - part.mean(axis=1, keepdims=True) for part in (scores, new)]
    return _sklearn_regression(centred[0], labels, centred[1])


def _netcal(module: str, name: str, **options: object) -> Peer:
    def peer(scores: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        import netcal.binning
        import netcal.scaling

        probs, new_probs = softmax(scores, axis=1), softmax(new, axis=1)
        binary = probs.shape[1] == 2
        with contextlib.redirect_stderr(io.StringIO()):
            calibrator = getattr(getattr(netcal, module), name)(**options)
            calibrator.fit(probs[:, 1] if binary else probs, labels)
            result = np.asarray(calibrator.transform(new_probs[:, 1] if binary else new_probs), dtype=float)
        return np.column_stack([1 - result, result]) if binary else result

    return peer


def _probmetrics(name: str) -> Peer:
    def peer(scores: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        from probmetrics.calibrators import get_calibrator

        calibrator = get_calibrator(name).fit(softmax(scores, axis=1), labels)
        return np.asarray(calibrator.predict_proba(softmax(new, axis=1)), dtype=float)

    return peer


def _uncertainty_calibration(name: str, bins: int) -> Peer:
    def peer(scores: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        import calibration

        calibrator = getattr(calibration, name)(len(labels), num_bins=bins)
        calibrator.train_calibration(softmax(scores, axis=1), labels)
        return np.asarray(calibrator.calibrate(softmax(new, axis=1)), dtype=float)

    return peer


# Family of ours -> peers of that family. The package that each needs is the first word of its name.
PEERS: dict[str, dict[str, Peer]] = {
    "temperature": {
        "netcal TemperatureScaling": _netcal("scaling", "TemperatureScaling"),
        "sklearn temperature": _sklearn("temperature"),
        "probmetrics temp-scaling": _probmetrics("temp-scaling"),
        "probmetrics ts-mix": _probmetrics("ts-mix"),
    },
    "vector": {
        "netcal LogisticCalibration": _netcal("scaling", "LogisticCalibration"),
        "probmetrics svs": _probmetrics("svs"),
    },
    "matrix": {"sklearn LogisticRegression, logits": _sklearn_centred},
    "structured-matrix": {
        "probmetrics sms": _probmetrics("sms"),
        "sklearn LogisticRegression, log-probabilities": _sklearn_regression,
    },
    "dirichlet": {"sklearn LogisticRegression, log-probabilities": _sklearn_regression},
    "platt": {
        "sklearn sigmoid": _sklearn("sigmoid"),
        "netcal LogisticCalibration": _netcal("scaling", "LogisticCalibration"),
        "probmetrics affine-scaling": _probmetrics("affine-scaling"),
    },
    "beta": {"netcal BetaCalibration": _netcal("scaling", "BetaCalibration")},
    "isotonic": {
        "sklearn isotonic": _sklearn("isotonic"),
        "netcal IsotonicRegression": _netcal("binning", "IsotonicRegression"),
        "probmetrics isotonic": _probmetrics("isotonic"),
    },
    "histogram": {
        "netcal HistogramBinning": _netcal("binning", "HistogramBinning"),
        "netcal HistogramBinning, 50 bins": _netcal("binning", "HistogramBinning", bins=50),
        "calibration HistogramMarginal": _uncertainty_calibration("HistogramMarginalCalibrator", 15),
    },
}
# Peers that are compared only for two classes, or only for more than two.
BINARY_ONLY = {"probmetrics affine-scaling"}
MULTICLASS_ONLY = {"probmetrics svs", "probmetrics sms"}
# Platt scaling of netcal is vector scaling when there are more than two classes: another family.
BINARY_IN_FAMILY = {("platt", "netcal LogisticCalibration")}


def installed(peer: str) -> bool:
    """Whether the package of a peer is installed."""
    return importlib.util.find_spec(peer.split()[0]) is not None


def applies(family: str, peer: str, n_classes: int) -> bool:
    """Whether a peer belongs to the family for that number of classes."""
    if n_classes == 2:
        return peer not in MULTICLASS_ONLY
    return peer not in BINARY_ONLY and (family, peer) not in BINARY_IN_FAMILY
