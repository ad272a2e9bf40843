"""Tests of the classifiers' settings: whole numbers, sizes of layers, seeds, devices and progress."""

import pickle
import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from calibrant import BO4SCClassifier, SelfCalibratedClassifier
from calibrant.base.device import resolve_device
from calibrant.methods import BO4SC
from tests.estimators.cases import QUICK, three_classes

X, y = three_classes()

each = pytest.mark.parametrize("quick", QUICK.values(), ids=QUICK)


COUNTED = {"epochs", "batch_size", "steps", "folds", "repeats", "last", "hidden_layer_sizes"}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in QUICK for name in sorted(COUNTED & set(QUICK[kind].get_params()))]
)
def test_what_is_counted_is_a_whole_number(kind, name):
    quick, (X, y) = QUICK[kind], three_classes()
    for value in (1.5, 20.0, np.float32(2), 0, -1, True, "3"):
        given = (8, value) if name == "hidden_layer_sizes" else value
        with pytest.raises(ValueError, match=f"{name} must be a positive whole number; got "):
            clone(quick).set_params(**{name: given}).fit(X, y)
    if kind != "bo4sc" and name not in ("epochs", "batch_size", "hidden_layer_sizes"):  # only these accept None
        with pytest.raises(ValueError, match="got None"):
            clone(quick).set_params(**{name: None}).fit(X, y)


@each
def test_whole_numbers_of_numpy_are_whole_numbers(quick):
    counted = {k: v for k, v in quick.get_params().items() if k in ("epochs", "steps", "folds", "repeats")}
    size = {"batch_size": np.uint8(200)} if "batch_size" in quick.get_params() else {}
    whole = {k: np.int32(v) for k, v in counted.items() if v is not None}
    fitted = clone(quick).set_params(**whole, **size)
    np.testing.assert_array_equal(fitted.fit(X, y).predict_proba(X), clone(quick).fit(X, y).predict_proba(X))


@each
def test_epochs_are_rounded_up_to_whole_outer_steps(quick):
    inner = [clone(quick).set_params(epochs=n, steps=5).fit(X, y).history_["inner_loss"] for n in (11, 15, 16)]
    assert [len(losses) for losses in inner] == [3, 3, 4]


@each
def test_seeds(quick):
    first = clone(quick).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(clone(quick).fit(X, y).predict_proba(X), first)
    assert not np.array_equal(clone(quick).set_params(random_state=1).fit(X, y).predict_proba(X), first)
    state = np.random.RandomState(0)
    drawn = clone(quick).set_params(random_state=state)
    one, two = drawn.fit(X, y).predict_proba(X), drawn.fit(X, y).predict_proba(X)
    assert not np.array_equal(one, two)  # an instance moves on, as everywhere in scikit-learn
    clone(quick).set_params(random_state=None).fit(X, y)


@each
def test_global_random_numbers_are_left_alone(quick):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    clone(quick).fit(X, y)
    assert torch.equal(torch.rand(1), expected)


@each
def test_a_progress_bar_if_asked_for(quick, capfd):
    clone(quick).fit(X, y)
    assert capfd.readouterr().err == ""
    clone(quick).set_params(verbose=True).fit(X, y)
    progress = rf"{type(quick).__name__} 100%, done, epoch (\d+) of \1, training loss \d\.\d+, validation loss \d\.\d+"
    assert re.search(progress, capfd.readouterr().err)


def test_devices(monkeypatch):
    assert resolve_device("cpu") == torch.device("cpu")
    for present in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda present=present: present)
        assert resolve_device("auto").type == ("cuda" if present else "cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ValueError, match="sees no GPU"):
            resolve_device(name)
    for name in ("tpu", "cpu:0", "cuda:", "", None):
        with pytest.raises(ValueError, match="device must be"):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)


@each
def test_no_hidden_layer_is_logistic_regression(quick):
    alone = {"members": ("network",), "embedding": None} if "members" in quick.get_params() else {}
    fitted = clone(quick).set_params(hidden_layer_sizes=(), **alone).fit(X, y)
    assert [tuple(p.shape) for p in fitted.model_.networks[0].module.parameters()] == [(3, 2), (3,)]
    assert fitted.score(X, y) > 0.8


@pytest.mark.parametrize(
    ("clf", "words"),
    [
        *((SelfCalibratedClassifier(sizes), "hidden_layer_sizes must be") for sizes in (None, 8.0, "64")),
        (SelfCalibratedClassifier(learning_rate=float("inf")), "learning_rate must be a positive number"),
        (SelfCalibratedClassifier(folds=1), "folds must be at least 2"),
        (BO4SCClassifier(alpha=0), "alpha must be a positive number"),
        (BO4SCClassifier(validation_fraction=1.0), "validation_fraction must lie"),
        (BO4SCClassifier(validation_fraction=0), "validation_fraction must lie"),
        (BO4SCClassifier(method="bo4sc"), r"method must be a calibrant\.methods\.BO4SC"),
        (BO4SCClassifier(method=BO4SC), r"method must be a calibrant\.methods\.BO4SC"),
        (BO4SCClassifier(method=BO4SC(outer_loss="nll", batch_size=0, alpha=30.0)), "batch_size must be a positive"),
    ],
    ids=str,
)
def test_settings_are_checked_in_fit(clf, words):
    with pytest.raises(ValueError, match=words):
        clf.fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])


def test_parameters_replace_fields_of_the_method():
    method = BO4SC(steps=3, alpha=50.0, also=("l2",))
    assert BO4SCClassifier()._method() == BO4SC()
    assert BO4SCClassifier(method=method)._method() == method
    given = BO4SCClassifier(8, steps=4, outer_learning_rate=2.0, method=method)._method()
    assert given == BO4SC(hidden=(8,), steps=4, outer_learning_rate=2.0, alpha=50.0, also=("l2",))


def test_copies_and_files_keep_the_method(tmp_path):
    method = BO4SC(also=("l2",), batch_size=20)
    fitted = BO4SCClassifier(4, method=method, epochs=5, random_state=0).fit(X, y)
    fitted.save(tmp_path / "model.calibrant")
    copies = [BO4SCClassifier.load(tmp_path / "model.calibrant"), pickle.loads(pickle.dumps(fitted))]
    for copy in copies:
        assert copy.get_params() == fitted.get_params()
        np.testing.assert_array_equal(copy.predict_proba(X), fitted.predict_proba(X))
    assert clone(fitted).method == fitted.method


def test_methods_can_be_searched():
    X, y = three_classes(60)
    methods = [BO4SC(), BO4SC(inner="sgd", learning_rate=1e-9)]
    search = GridSearchCV(BO4SCClassifier(8, epochs=40, random_state=0), {"method": methods}, cv=2).fit(X, y)
    assert search.best_params_["method"] == methods[0]
