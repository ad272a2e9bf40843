"""Tests that ONNX files give the classifiers' predictions in onnxruntime, for any number of rows."""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, replace

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from torch import nn

import calibrant
from calibrant import BO4SCClassifier, SelfCalibratedClassifier, methods
from calibrant.estimators import load_classifier
from calibrant.export import graph, to_onnx
from calibrant.export.networks import scaled
from calibrant.methods.blend import KINDS, Blend
from calibrant.methods.confidence import Mapped
from calibrant.pool.boosted_trees import StoredBoosted
from calibrant.pool.linear_member import Line, Linear
from calibrant.pool.pool import Pool
from tests.base.test_samples import HERE, load
from tests.methods.test_confidence_map import moved

QUICK = {"epochs": 10, "learning_rate": 0.05, "random_state": 0}


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def numbers(n=150):
    """Columns of all magnitudes, with missing values and outliers, a constant column and one with few values."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n, 5)) * [1, 10, 1e3, 0, 1] + [0, 5, 1e5, 7, 0]
    X[:, 4] = X[:, 4].round()
    y = (X[:, 0] + np.sin(X[:, 1]) > 0.3).astype(int) + (X[:, 4] > 1)
    X[random.random(X.shape) < 0.05] = np.nan
    X[3, 0] = 1e9
    return X, y


def mixed(n=150):
    random = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "width": random.normal(size=n),
            "town": random.choice(["Bern", "Rom", "Ulm", None], n),
            "new": random.random(n) < 0.5,
            "day": pd.date_range("2020-01-01", periods=n),
            "code": pd.Categorical(random.integers(0, 4, n)),
        }
    )
    y = np.where(frame["width"] + (frame["town"] == "Rom") > 0.5, "yes", "no")
    frame.loc[3, "width"] = None
    return frame, y


CASES = {
    "pool": SelfCalibratedClassifier((6,), folds=2, steps=2, **QUICK),
    "tanh": SelfCalibratedClassifier((6,), folds=2, steps=2, activation="tanh", members=("network",), **QUICK),
    "one network": BO4SCClassifier((6,), **QUICK),
}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("pool", "text"),
        ("tanh", "text"),
        *(("one network", labels) for labels in ("whole numbers", "text", "truth values")),
    ],
)
def test_tables_of_numbers(name, labels, tmp_path):
    X, y = numbers()
    y = {"whole numbers": y * 10, "text": np.array(["low", "mid", "high"])[y], "truth values": y > 0}[labels]
    classifier = CASES[name].fit(X, y)
    for dtype, atol in (("float32", 1e-5), ("float64", 1e-6)):
        to_onnx(classifier, tmp_path / "model.onnx", dtype=dtype)
        run = session(tmp_path / "model.onnx")
        for rows in (X[:1], X[:7], X):
            given = rows.astype(dtype)
            label, probs = run.run(["label", "probabilities"], {"X": given})
            assert probs.dtype == np.dtype(dtype)
            np.testing.assert_allclose(probs, classifier.predict_proba(given), rtol=0, atol=atol)
            np.testing.assert_array_equal(label, classifier.classes_[probs.argmax(1)])
    assert json.loads(run.get_modelmeta().custom_metadata_map["classes"]) == classifier.classes_.tolist()


@pytest.mark.parametrize("classifier", [CASES["pool"], CASES["one network"]], ids=["pool", "one network"])
def test_a_table_with_text_enters_as_the_encoder_reads(classifier, tmp_path):
    frame, y = mixed()
    classifier.fit(frame, y)
    to_onnx(classifier, tmp_path / "model.onnx", dtype="float64")
    run = session(tmp_path / "model.onnx")
    assert json.loads(run.get_modelmeta().custom_metadata_map["columns"]) == frame.columns.tolist()
    new = frame.copy()
    new.loc[5:8, "town"] = ["never seen", "", None, "Rom"]
    new.loc[9, ["width", "day"]] = None
    _, probs = run.run(None, {"X": classifier.encoder_.transform(new)})
    np.testing.assert_allclose(probs, classifier.predict_proba(new), rtol=0, atol=1e-6)


def test_a_pool_that_knows_nothing_answers_with_the_frequencies(tmp_path):
    classifier = load(HERE / "version-5-self.calibrant")
    classifier.model_ = Blend(None, {}, Pool(np.zeros(0), np.log([0.2, 0.3, 0.5]), 0.1))
    X = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    to_onnx(classifier, tmp_path / "model.onnx")
    _, probs = session(tmp_path / "model.onnx").run(None, {"X": X})
    np.testing.assert_allclose(probs, np.tile([[0.2, 0.3, 0.5]], (9, 1)) * 0.9 + 0.1 / 3, rtol=0, atol=1e-5)
    np.testing.assert_allclose(probs, classifier.predict_proba(X), rtol=0, atol=1e-5)


class OwnLine(Line):
    """A model of another class than those of the package's own members."""


class OwnKind(Linear):
    model = OwnLine

    def mean(self, models):
        return OwnLine(*astuple(super().mean(models)))


def test_a_new_member_needs_one_row_of_the_table(tmp_path, monkeypatch):
    """It is trained, checked, stored and exported without another list."""
    monkeypatch.setitem(KINDS, "own", OwnKind())
    X, y = numbers()
    fitted = clone(CASES["pool"]).set_params(members=("network", "own")).fit(X, y)
    assert fitted.members_ == ("network", "own")
    fitted.save(tmp_path / "model.calibrant")
    loaded = load_classifier(tmp_path / "model.calibrant")
    assert type(loaded.model_.others["own"]) is OwnLine
    to_onnx(loaded, tmp_path / "model.onnx", dtype="float64")
    _, probs = session(tmp_path / "model.onnx").run(None, {"X": X})
    np.testing.assert_allclose(probs, fitted.predict_proba(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("file", ["version-5-self", "version-5-frame", "version-5-bo4sc"])
def test_loaded_classifiers_can_be_written_too(file, tmp_path):
    classifier = load(HERE / f"{file}.calibrant")
    to_onnx(classifier, tmp_path / "model.onnx")
    X = np.random.default_rng(0).normal(size=(20, len(classifier.scaling_.mean))).astype(np.float32).round(1)
    _, probs = session(tmp_path / "model.onnx").run(None, {"X": X})
    if classifier.encoder_ is None:
        np.testing.assert_allclose(probs, classifier.predict_proba(X), rtol=0, atol=1e-5)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=0, atol=1e-5)


def _run(build, inputs, classes, tmp_path):
    """Run one piece of a graph alone."""
    own = graph.Graph()
    value = own.cast(build(own, "X"), np.float64)
    kind = inputs.dtype
    outputs = {"Y": (value, np.float64, ["n", classes])}
    own.write(tmp_path / "piece.onnx", {"X": (kind, ["n", inputs.shape[1]])}, outputs, {})
    return session(tmp_path / "piece.onnx").run(None, {"X": inputs})[0]


def test_thresholds_between_float32_numbers_divide_as_they_did(tmp_path):
    """Rounded to the nearest float32, half of such thresholds would send the next number to the wrong side."""
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    after = np.nextafter(values, np.float32(np.inf))
    thresholds = values + 0.9 * (after.astype(np.float64) - values)
    trees = len(values)
    node = {"feature": [0, 0, 0], "left": [1, 0, 0], "right": [2, 0, 0], "leaf": [0, 1, 1], "missing_left": [0, 0, 0]}
    forest = StoredBoosted(
        **{name: np.tile(np.array(own), trees) for name, own in node.items()},
        threshold=np.stack([thresholds, np.zeros(trees), np.zeros(trees)], 1).ravel(),
        value=np.stack([np.zeros(trees), np.ones(trees), -np.ones(trees)], 1).ravel(),
        starts=np.arange(0, 3 * trees + 1, 3),
        column=np.arange(trees) % 2,
        baseline=np.array([0.5, -0.5]),
    )
    inputs = np.concatenate([values, after])[:, None]
    found = _run(forest.onnx, inputs, 2, tmp_path)
    np.testing.assert_allclose(found, forest.scores(inputs), rtol=0, atol=1e-4)


def test_scaling_marks_gaps_and_codes(tmp_path):
    from calibrant.data.scaling import Scaling

    scaling = Scaling(
        np.array([1.0, 0.0, 0.0, 5.0]),
        np.array([2.0, 1.0, 1.0, np.inf]),
        np.array([True, True, False, False]),
        np.array([0, 2, 3, 0]),
    )
    gap = np.nan
    X = np.array([[1, 0, 0, 5], [gap, 1, 2, gap], [1e30, 2, 3, 9], [-60, gap, gap, 5], [3, -1, 0.5, 5], [3, 7, 1, 5.0]])
    found = _run(lambda own, x: scaled(own, x, scaling), X, scaling.width, tmp_path)
    np.testing.assert_allclose(found, scaling.transform(X), rtol=1e-6)


def test_what_cannot_be_written_says_so(tmp_path, monkeypatch):
    with pytest.raises(NotFittedError):
        to_onnx(SelfCalibratedClassifier(), tmp_path / "a")
    with pytest.raises(TypeError, match="got LogisticRegression"):
        to_onnx(LogisticRegression(), tmp_path / "a")
    with pytest.raises(ValueError, match="dtype must be"):
        to_onnx(BO4SCClassifier(), tmp_path / "a", dtype="half")
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        to_onnx(nn.Linear(2, 2), tmp_path / "a", temperature=0.0)
    with pytest.raises(ValueError, match="example must be given"):
        to_onnx(nn.Linear(2, 2), tmp_path / "a")
    with pytest.raises(ValueError, match="two rows or more"):
        to_onnx(nn.Linear(2, 2), tmp_path / "a", example=torch.zeros(1, 2))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'calibrant\[onnx\]'"):
        graph.require()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_module_with_a_temperature(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 4))
    x = torch.randn(50, 3)
    to_onnx(network, tmp_path / "model.onnx", example=x[:2], temperature=1.7)
    assert network.training
    expected = (network.eval()(x) / 1.7).softmax(1).detach().numpy()
    run = session(tmp_path / "model.onnx")
    for rows in (1, 50):
        (probs,) = run.run(["probabilities"], {"input": x[:rows].numpy()})
        np.testing.assert_allclose(probs, expected[:rows], rtol=0, atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


class Sum(nn.Module):
    """A network with two inputs by position."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, left, right):
        return self.head(self.first(left) + right)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_several_inputs_and_other_precisions(dtype, tmp_path):
    torch.manual_seed(0)
    network, given = Sum().to(dtype), (torch.randn(5, 3), torch.randn(5, 4))
    to_onnx(network, tmp_path / "model.onnx", example=given)
    expected = network.float()(*given).softmax(1).detach().numpy()
    kind = np.float64 if dtype == torch.float64 else np.float32
    feed = {name: t.numpy().astype(kind) for name, t in zip(("left", "right"), given, strict=True)}
    (probs,) = session(tmp_path / "model.onnx").run(["probabilities"], feed)
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-5)


class FixedRows(nn.Module):
    """A network that hides the number of rows from the exporter."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Parameter(torch.zeros(1, 3)), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x + self.token.expand(len(x), -1))


def test_a_fixed_number_of_rows_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"fixed the number of rows of 'input' at 4.*use x.shape\[0\]"):
        to_onnx(FixedRows(), tmp_path / "model.onnx", example=torch.randn(4, 3))
    assert not list(tmp_path.iterdir())


class Recurrent(nn.Module):
    """A network for sequences of any length."""

    def __init__(self):
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(20, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.words(tokens))[0][:, -1])


def test_sequences_may_have_another_length(tmp_path):
    torch.manual_seed(0)
    network, tokens = Recurrent().eval(), torch.randint(20, (6, 32))
    to_onnx(network, tmp_path / "model.onnx", example=tokens[:3, :24])
    for length in (1, 24, 32):
        (probs,) = session(tmp_path / "model.onnx").run(None, {"input": tokens[:, :length].numpy()})
        expected = network(tokens[:, :length]).softmax(1).detach().numpy()
        np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-5)


class Counting(nn.Module):
    """A network whose graph fixes the length of its inputs, because Python counts the entries."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(sum(x[:, k] for k in range(int(x.shape[1]))))


def test_a_length_that_the_graph_fixes_is_a_warning(tmp_path):
    x = torch.randn(3, 5, 2)
    with pytest.warns(UserWarning, match="the ONNX file accepts only 5 on axis 1"):
        to_onnx(Counting(), tmp_path / "model.onnx", example=x)
    assert session(tmp_path / "model.onnx").get_inputs()[0].shape == ["n", 5, 2]


class Named(nn.Module):
    """A network with two inputs by name that returns a mapping, as those of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].float()
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return {"logits": self.head(mean)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "words"])
@pytest.mark.parametrize(
    "method",
    [methods.BO4SC(steps=2, epochs=3), methods.SelfCalibrated(members=("network",), folds=2, epochs=3, steps=2)],
    ids=["bo4sc", "self-calibrated"],
)
def test_the_result_of_fit(kind, method, tmp_path):
    torch.manual_seed(0)
    y = torch.arange(60) % 3
    if kind == "images":
        x = torch.randn(60, 3, 8, 8) + y[:, None, None, None]
        pooled = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *pooled)
        take, feed = (lambda rows: x[rows]), (lambda values: {"input": values.numpy()})
    else:
        x = {"input_ids": torch.randint(0, 20, (60, 5)), "attention_mask": torch.ones(60, 5, dtype=torch.long)}
        network = Named()
        take, feed = (lambda r: {k: v[r] for k, v in x.items()}), (lambda v: {k: t.numpy() for k, t in v.items()})
    result = calibrant.fit(network, (take(slice(40)), y[:40]), (take(slice(40, 60)), y[40:]), method=method)
    to_onnx(result, tmp_path / "model.onnx", example=take(slice(3)))
    run = session(tmp_path / "model.onnx")
    for rows in (slice(1), slice(60)):
        (probs,) = run.run(None, feed(take(rows)))
        np.testing.assert_allclose(probs, result.probs(take(rows)).numpy(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 5])
def test_a_confidence_map(classes, tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.arange(60) % classes
    result = calibrant.fit(nn.Linear(4, classes), (x[:40], y[:40]), (x[40:], y[40:]), networks=1, epochs=2)
    result = replace(result, fitted=Mapped(result.fitted.model, moved()))
    to_onnx(result, tmp_path / "model.onnx", example=x[:3])
    run = session(tmp_path / "model.onnx")
    for rows in (slice(1), slice(60)):
        (probs,) = run.run(None, {"input": x[rows].numpy()})
        np.testing.assert_allclose(probs, result.probs(x[rows]).numpy(), rtol=0, atol=1e-5)
