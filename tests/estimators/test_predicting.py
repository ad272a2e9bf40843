"""Tests of predictions: probabilities, abstention, suspicion, and saved files."""

import copy
import doctest
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

import calibrant
from calibrant import BO4SCClassifier, SelfCalibratedClassifier
from calibrant.base.files import read_arrays, read_content, write_container
from calibrant.estimators import bo4sc, load_classifier, self_calibrated
from calibrant.estimators.selective import withhold
from tests.estimators.cases import QUICK, three_classes

X, y = three_classes()

each = pytest.mark.parametrize("quick", QUICK.values(), ids=QUICK)
NAMES = np.array(["low", "mid", "high"])


@each
def test_the_frozen_networks_are_the_trained_ones(quick, monkeypatch):
    """The fitted classifier has the same probabilities as the method's result."""
    kept = {}
    method = type(quick._method())
    original = method.fit

    def fit(self, *args, **given):
        kept["fitted"] = original(self, *args, **given)
        return kept["fitted"]

    monkeypatch.setattr(method, "fit", fit)
    fitted = clone(quick).fit(X, y)
    direct = kept["fitted"].probs(fitted.scaling_.apply(X)).numpy()
    np.testing.assert_allclose(fitted.predict_proba(X), direct, atol=1e-5)


@each
def test_probabilities_confidence_and_prediction_agree(quick):
    fitted = clone(quick).fit(X, NAMES[y])
    probs = fitted.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_array_equal(fitted.confidence(X), probs.max(1))
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[probs.argmax(1)])
    np.testing.assert_array_equal(np.exp(fitted.predict_log_proba(X)).round(12), probs.round(12))
    assert fitted.score(X, NAMES[y]) == np.mean(fitted.predict(X) == NAMES[y])


@each
def test_abstention(quick):
    fitted = clone(quick).fit(X, y)
    threshold = float(np.median(fitted.confidence(X)))
    kept = fitted.confidence(X) >= threshold
    answer = fitted.predict(X, reject_below=threshold)
    np.testing.assert_array_equal(answer, np.where(kept, fitted.predict(X), -1))
    with pytest.raises(ValueError, match="is one of the classes"):
        fitted.predict(X, reject_below=0.9, reject_label=2)
    for below in (1.5, -0.1, float("nan"), "0.5", True):
        with pytest.raises(ValueError, match="reject_below must be a"):
            fitted.predict(X, reject_below=below)
    with pytest.raises(ValueError, match="reject_label needs a rule"):
        fitted.predict(X, reject_label=9)


@pytest.mark.parametrize(
    ("classes", "label", "expected"),
    [
        ([0, 1], None, [0, -1]),
        ([0, 1], 7, [0, 7]),
        ([0, 1], "unsure", [0, "unsure"]),
        ([0, 1], 0.5, [0.0, 0.5]),
        (["a", "b"], None, ["a", None]),
        (["a", "b"], "don't know", ["a", "don't know"]),
        ([False, True], None, [False, None]),
        ([0.5, 1.5], None, [0.5, np.nan]),
        (np.array([0, 1], np.int8), 300, [0, 300]),
    ],
)
def test_labels_of_abstention(classes, label, expected):
    classes = np.asarray(classes)
    answer = withhold(classes, np.array([True, False]), classes, label)
    np.testing.assert_equal(answer.tolist(), expected)


def test_abstention_that_cannot_be_told_apart():
    classes = np.array([-1, 1])
    with pytest.raises(ValueError, match="Name another"):
        withhold(classes, np.ones(2, bool), classes, None)
    with pytest.raises(ValueError, match="one of the classes"):
        withhold(classes, np.ones(2, bool), classes, True)  # equal to 1


@each
def test_nobody_is_suspected_if_nothing_was_learned(quick):
    X, y = np.tile([[0.0], [0.0], [1.0], [1.0]], (60, 1)), np.tile([0, 1], 120)
    fitted = clone(quick).fit(X, y)
    assert fitted.learned_ is False
    assert len(fitted.suspects()) == 0
    assert len(fitted.suspects(n=3)) == 3
    X, y = three_classes(300)
    assert clone(quick).set_params(epochs=60).fit(X, y).learned_ is True


@each
def test_flipped_labels_are_suspected(quick):
    X, y = three_classes(300)
    flipped = np.random.default_rng(1).random(300) < 0.15
    noisy = np.where(flipped, (y + 1) % 3, y)
    fitted = clone(quick).set_params(epochs=60).fit(X[:210], noisy[:210], X_val=X[210:], y_val=y[210:])
    assert roc_auc_score(flipped[:210], fitted.suspicion_) > 0.9
    order, scores = fitted.suspects(n=210, return_scores=True)
    assert np.all(np.diff(scores) <= 0)
    assert sorted(order) == list(range(210))
    np.testing.assert_array_equal(fitted.suspects(X[:210], noisy[:210]), fitted.suspects())
    assert np.all(fitted.suspicion_[fitted.suspects()] > 0.5)
    np.testing.assert_array_equal(fitted.suspects(n=5), order[:5])
    new, new_scores = fitted.suspects(X[210:], noisy[210:], n=3, return_scores=True)
    assert flipped[210:][new].all()
    probs = fitted.predict_proba(X[210:])
    np.testing.assert_allclose(new_scores, 1 - probs[new, noisy[210:][new]])
    if isinstance(fitted, SelfCalibratedClassifier):
        assert fitted.candidate_ == "label noise"
        assert isinstance(fitted.label_noise_, float)
        assert 0.05 < fitted.label_noise_ < 0.3
        assert len(fitted.history_["inner_loss"]) == 36  # the chosen run has three times the epochs
    with pytest.raises(ValueError, match="or neither"):
        fitted.suspects(X)
    with pytest.raises(ValueError, match="whole number"):
        fitted.suspects(n=-1)


def test_a_trained_weight_of_zero_is_full_suspicion():
    fitted = clone(QUICK["bo4sc"]).fit(X, y)
    rows = fitted.train_indices_
    own = fitted.predict_proba(X)[np.arange(90), y]
    np.testing.assert_allclose(fitted.suspicion_[rows], 1 - fitted.sample_weights_[rows] * own[rows])
    held = fitted.validation_indices_
    np.testing.assert_allclose(fitted.suspicion_[held], 1 - own[held])


@each
@pytest.mark.parametrize("kind", ["text", "objects", "whole numbers", "truth values"])
def test_files(quick, kind, tmp_path):
    labels = {"text": NAMES[y], "objects": NAMES[y].astype(object), "whole numbers": y * 10, "truth values": y > 0}
    frame = pd.DataFrame(X, columns=["a", "b"])
    fitted = clone(quick).fit(frame, labels[kind])
    fitted.save(tmp_path / "model.calibrant")
    again = type(quick).load(tmp_path / "model.calibrant")
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))
    np.testing.assert_array_equal(again.predict(frame), fitted.predict(frame))
    assert again.classes_.dtype == fitted.classes_.dtype
    assert again.get_params() == fitted.get_params()
    np.testing.assert_array_equal(again.suspects(frame, labels[kind]), fitted.suspects())
    assert set(vars(again)) == set(vars(fitted))
    assert repr(load_classifier(tmp_path / "model.calibrant")) == repr(fitted)
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"a": "c"}))
    for copied in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(copied.predict_proba(frame), fitted.predict_proba(frame))
    assert again.fit(X, y).predict(X).shape == y.shape


def test_a_file_is_small_and_says_what_it_is(tmp_path):
    path = tmp_path / "model.calibrant"
    fitted = clone(QUICK["self-calibrated"]).set_params(members=("network",)).fit(X, y)
    fitted.save(path)
    assert load_classifier(path).lapse_ == fitted.lapse_ == fitted.model_.lapse > 0
    assert path.stat().st_size < 25_000  # networks and results, no training data
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["calibrant"])
    assert (header["holds"], header["class"]) == ("classifier", "SelfCalibratedClassifier")
    assert header["calibrant"] == calibrant.__version__


def test_wrong_files(tmp_path):
    path = tmp_path / "model.calibrant"
    clone(QUICK["bo4sc"]).fit(X, y).save(path)
    with pytest.raises(ValueError, match="holds a BO4SCClassifier, not a SelfCalibratedClassifier"):
        SelfCalibratedClassifier.load(path)
    with pytest.raises(FileNotFoundError, match="no file"):
        load_classifier(tmp_path / "other")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_classifier(tmp_path / "text")
    raw = path.read_bytes()
    header, arrays = read_content(raw), read_arrays(raw)

    def written(**changes):
        write_container(path, json.dumps(header | changes), arrays)
        return path

    for changes, message in (
        ({"version": 99}, "version 99"),
        ({"version": 1}, "version 1 of the format.* fit and save again"),
        ({"class": "os.system"}, "unknown"),
        ({"format": "calibrant.posthoc"}, "does not name the format"),
        ({"params": {"folds": {"value": 3}}}, "damaged"),
        ({"state": {}}, "damaged"),
        ({"state": header["state"] | {"n_features_in_": {"value": 3}}}, "for each of 3 columns"),
        ({"state": header["state"] | {"classes_": {"texts": ["a", "b"], "dtype": "<U1"}}}, "do not fit together"),
    ):
        with pytest.raises(ValueError, match=message):
            load_classifier(written(**changes))
    mixture = header["state"]["model_"]["dict"]
    arrays["one"] = np.zeros(1)
    for change, message in (
        ({"temperature": {"value": 0.0}}, "out of range"),
        ({"lapse": {"value": 1.5}}, "out of range"),
        ({"bias": {"array": "one"}}, "bias must have one entry for each of 3 classes"),
        ({"pool": {"value": "nonsense"}}, "pool must be one of 'probs', 'logits', not 'nonsense'"),
        ({"networks": {"list": []}}, "at least one network"),
    ):
        with pytest.raises(ValueError, match=message):
            load_classifier(written(state=header["state"] | {"model_": {"dict": mixture | change}}))
    mean, scale, *rest = header["state"]["scaling_"]["tuple"]
    for change in ([{"array": "one"}, scale, *rest], [mean, {"array": "one"}, *rest]):
        with pytest.raises(ValueError, match="a mean and a scale for each of 2 columns"):
            load_classifier(written(state=header["state"] | {"scaling_": {"tuple": change}}))
    for name in ("predict", "alpha", "__class__", "_private_"):
        with pytest.raises(ValueError, match=f"'{name}' is not a fitted attribute"):
            load_classifier(written(state=header["state"] | {name: {"value": 1}}))


def test_what_cannot_be_written_says_so(tmp_path):
    fitted = clone(QUICK["bo4sc"]).set_params(random_state=np.random.RandomState(0)).fit(X, y)
    fitted.save(tmp_path / "model")
    assert BO4SCClassifier.load(tmp_path / "model").random_state is None

    class Own(BO4SCClassifier):
        pass

    with pytest.raises(TypeError, match="got Own"):
        Own((8,), epochs=2).fit(X, y).save(tmp_path / "own")


@pytest.mark.parametrize("module", [bo4sc, self_calibrated])
def test_the_examples_in_the_docstrings_run(module):
    assert doctest.testmod(module).failed == 0
