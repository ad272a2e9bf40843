"""Mistakes that new users make in Python are answered by a sentence, not by an error from inside a library."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import calibrant
from calibrant import metrics, posthoc, selective, tables
from calibrant.bilevel import Callback

rng = np.random.default_rng(0)
PROBS, LABELS = rng.dirichlet([1, 1, 1], 60), rng.integers(0, 3, 60)
LOGITS = np.log(PROBS)
X, Y = rng.normal(size=(60, 4)), np.arange(60) % 2
FITTED = LogisticRegression().fit(X, Y)
TRAIN, VAL = (torch.tensor(X[:40]).float(), torch.tensor(Y[:40])), (torch.tensor(X[40:]).float(), torch.tensor(Y[40:]))


def fit(model=None, **settings):
    return calibrant.fit(nn.Linear(4, 2) if model is None else model, TRAIN, VAL, **{"epochs": 2} | settings)


def rule():
    return selective.conformal_rule(PROBS, LABELS)


def calibrated():
    return calibrant.calibrate(nn.Linear(4, 2), VAL)


class Texts:
    """Like a pandas Series of text."""

    def to_numpy(self):
        return np.array(["a", "b", "c"], dtype=object)

    def __array__(self, dtype=None, copy=None):
        return self.to_numpy()


MISTAKES = {
    "epochs as text": (lambda: fit(epochs="10"), "epochs must be at least 1 and a whole number; got '10'"),
    "infinite epochs": (lambda: fit(epochs=float("inf")), "epochs must be at least 1 and a whole number; got inf"),
    "rate as text": (lambda: fit(learning_rate="0.1"), "learning_rate must be a number; got '0.1'"),
    "seed as text": (lambda: fit(seed="a"), "seed must be a whole number, 0 or above; got 'a'"),
    "function as callbacks": (lambda: fit(callbacks=print), "callbacks must be a list .* Derive a class"),
    "functions as callbacks": (lambda: fit(callbacks=[print]), "callbacks must be a list .* Derive a class"),
    "one callback": (lambda: fit(callbacks=Callback()), r"callbacks must be a list .* Pass \[callback\]"),
    "classifier to fit": (lambda: fit(LogisticRegression()), "must be an nn.Module .* use calibrant.CrossCalibrated"),
    "classifier to calibrate": (
        lambda: calibrant.calibrate(LogisticRegression(), VAL),
        "must be a trained nn.Module; got LogisticRegression. For a classifier .* use calibrant.CrossCalibrated",
    ),
    "array to calibrate": (lambda: calibrant.calibrate(LOGITS, LABELS), "got ndarray. For arrays of logits, use"),
    "callbacks of a classifier": (
        lambda: calibrant.SelfCalibratedClassifier().fit(X, Y, callbacks=print),
        "callbacks must be a list",
    ),
    "list of dictionaries": (
        lambda: calibrant.SelfCalibratedClassifier().fit([{"a": 1.0}] * 60, Y),
        r"got a list of dictionaries. Give pandas.DataFrame\(X\)",
    ),
    "number as estimator": (lambda: calibrant.CrossCalibrated(3).fit(X, Y), "estimator must be a classifier, .* got 3"),
    "network to evaluate": (lambda: calibrant.evaluate(nn.Linear(4, 3), LABELS), "got a Linear. Pass its predictions"),
    "classifier to a metric": (
        lambda: metrics.ece(LogisticRegression(), Y),
        "LogisticRegression. Pass its predictions",
    ),
    "resamples as text": (lambda: calibrant.evaluate(PROBS, LABELS, n_resamples="many"), "n_resamples must be a whole"),
    "number of classes": (lambda: calibrant.evaluate(PROBS, LABELS, classes=3), "classes must be a list of 3 names"),
    "classes as text": (lambda: calibrant.evaluate(PROBS, LABELS, classes="abc"), "classes must be a list of 3 names"),
    "smooth bandwidth": (lambda: metrics.smooth_ece(PROBS, LABELS, bandwidth="auto"), "bandwidth must be a number"),
    "sece bandwidth": (lambda: metrics.sece(PROBS, LABELS, bandwidth="auto"), "bandwidth must be a number"),
    "mmce width": (lambda: metrics.mmce(PROBS, LABELS, width="auto"), "width must be a number; got 'auto'"),
    "half a resample": (
        lambda: metrics.noise_floor(PROBS, n_resamples=99.5),
        "n_resamples must be a whole .* got 99.5",
    ),
    "level as text": (lambda: metrics.bootstrap_interval(PROBS, LABELS, level="95%"), "level must be a number"),
    "one candidate": (
        lambda: posthoc.Auto(candidates="temperature").fit(LOGITS, LABELS),
        r"candidates must be a list; got the text 'temperature'. Pass \['temperature'\]",
    ),
    "name of a calibrator": (
        lambda: posthoc.CalibratedModel(FITTED, "temperature").fit(X, Y),
        r"such as Temperature\(\); got 'temperature'. For a name, pass make_calibrator\(name\)",
    ),
    "class of a calibrator": (
        lambda: posthoc.CalibratedModel(FITTED, posthoc.Temperature).fit(X, Y),
        "calibrator must be one of calibrant.posthoc",
    ),
    "text to a metric": (
        lambda: metrics.ece(["text"], [0]),
        "probs must be an array of numbers; got text such as 'text'",
    ),
    "series of text": (
        lambda: posthoc.Temperature().fit(Texts(), LABELS),
        "logits must be an array of numbers; got text such as 'a'. .*The order of arguments is logits, labels",
    ),
    "text as confidence": (
        lambda: metrics.ece(confidence=Texts(), correct=[1, 0, 1]),
        "confidence must be an array of numbers; got text such as 'a'",
    ),
    "dates as weights": (
        lambda: metrics.ece(PROBS, LABELS, sample_weight=np.zeros(60, "datetime64[D]")),
        "sample_weight must be an array of numbers; got dates or durations",
    ),
    "objects as probabilities": (
        lambda: metrics.ece(np.array([[Decimal("0.3"), Decimal("0.7")]]), [1]),
        "probs must be an array of numbers; got values of type Decimal",
    ),
    "labels of unequal length": (lambda: metrics.ece(PROBS[:2], [[0], [0, 1]]), "labels must be a rectangular array"),
    "groups of unequal length": (
        lambda: metrics.ece(PROBS[:2], [0, 1], groups=[[0], [0, 1]]),
        "groups must be a rectangular array; got rows of unequal length",
    ),
    "text to a network": (lambda: calibrated().probs(["text"]), "inputs must be an array of numbers; got text such as"),
    "series of text to a network": (lambda: calibrated().predict(Texts()), "got text such as 'a'. Encode text as numb"),
    "rows of unequal length to a network": (lambda: calibrated().probs([[1.0], [1.0, 2.0]]), "rows of unequal length"),
    "text to train on": (
        lambda: calibrant.fit(nn.Linear(4, 2), (Texts(), LABELS[:3])),
        "The inputs of train must be an array of numbers; got text such as 'a'",
    ),
    "dates as labels to train on": (
        lambda: calibrant.fit(nn.Linear(4, 2), (TRAIN[0], np.zeros(40, "datetime64[D]"))),
        "The labels of train must be an array of numbers; got dates",
    ),
    "missing labels": (lambda: posthoc.CalibratedModel(FITTED).fit(X, [None] * 60), "y must not have missing entries"),
    "unknown labels to validate": (
        lambda: calibrant.SelfCalibratedClassifier().fit(X, Y, X_val=X, y_val=Y + 5),
        "y_val must hold classes that the model was trained on",
    ),
    "choose as text": (lambda: calibrant.SelfCalibratedClassifier(choose="x").fit(X, Y), "choose must be a number"),
    "table instead of an order": (lambda: tables.train("t.csv"), r"Pass Order\(table, target, out\)"),
    "risk as text": (lambda: tables.train(tables.Order("t.csv", "y", "out", risk="low")), "risk must be a number"),
    "bins as text": (
        lambda: posthoc.HistogramBinning(bins="x").fit(LOGITS, LABELS),
        "bins must be a positive whole .* got 'x'",
    ),
    "coverage as text": (lambda: selective.conformal_rule(PROBS, LABELS, "high"), "coverage must be a number"),
    "a class less": (lambda: rule().apply(PROBS[:, :2]), "probs must have 3 columns, .* got 2"),
    "the name of a file": (lambda: selective.SetRule.from_json("rule.json"), "got 'rule.json'. Pass the content"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_by_a_sentence(mistake):
    call, sentence = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()


class UnusedNetwork(nn.Linear):
    def forward(self, _inputs):
        raise AssertionError("the network was used")


class UnfittedClassifier(LogisticRegression):
    def fit(self, *_args, **_kwargs):
        raise AssertionError("the classifier was fitted")


@pytest.mark.parametrize(
    "call",
    [
        lambda: calibrant.CrossCalibrated(UnfittedClassifier(), calibrator="magic").fit(X, Y),
        lambda: calibrant.calibrate(UnusedNetwork(4, 2), VAL, calibrator="magic"),
        lambda: calibrant.fit(UnusedNetwork(4, 2), TRAIN, VAL, method=calibrant.methods.Calibrated("magic")),
    ],
    ids=["CrossCalibrated", "calibrate", "fit"],
)
def test_an_unknown_calibrator_is_noticed_first(call):
    with pytest.raises(ValueError, match=r"^calibrator must be one of .*'auto', 'temperature', .*; got 'magic'"):
        call()


def test_axes_must_be_axes_of_matplotlib():
    plt = pytest.importorskip("matplotlib.pyplot")
    from calibrant.plots import ConfidenceHistogramDisplay, ReliabilityDisplay, RiskCoverageDisplay

    figure, axes = plt.subplots(1, 2)
    for display in (ConfidenceHistogramDisplay, ReliabilityDisplay, RiskCoverageDisplay):
        for ax, advice in ((figure, r"figure.subplots\(\)"), (axes, r"axes\[0\]"), (3, "plt.subplots")):
            with pytest.raises(TypeError, match=f"ax must be axes of matplotlib; got .* Pass .*{advice}"):
                display.from_predictions(PROBS, LABELS, ax=ax)
    plt.close("all")


def test_a_classifier_reads_tensors_with_gradients():
    inputs = torch.tensor(X, requires_grad=True)
    settings = {"epochs": 2, "hidden_layer_sizes": 4, "random_state": 0}
    found, expected = (calibrant.BO4SCClassifier(**settings).fit(x, Y).predict_proba(x) for x in (inputs, X))
    assert np.array_equal(found, expected)
