"""Tests of a calibrator on top of scikit-learn classifiers and torch modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from posthoc_cases import NAMES, log_loss
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

from calibrant.posthoc import CalibratedModel, Isotonic, Temperature, make_calibrator

X, Y = make_classification(900, 8, n_informative=5, n_redundant=3, n_classes=3, random_state=0)
TRAIN, HELD, TEST = slice(0, 300), slice(300, 600), slice(600, 900)
NAMED = np.array(["swan", "duck", "goose"])[Y]


@pytest.mark.parametrize("name", NAMES)
def test_any_classifier_with_any_calibrator_keeps_its_classes(name):
    forest = RandomForestClassifier(20, random_state=0).fit(X[TRAIN], NAMED[TRAIN])  # it predicts exact zeros
    model = CalibratedModel(forest, make_calibrator(name)).fit(X[HELD], NAMED[HELD])
    np.testing.assert_array_equal(model.classes_, ["duck", "goose", "swan"])
    probs = model.predict_proba(X[TEST])
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert set(model.predict(X[TEST])) <= set(model.classes_)
    assert model.score(X[TEST], NAMED[TEST]) > 0.6
    assert model.confidence(X[TEST]).shape == (300,)


def test_calibration_helps_an_overconfident_classifier():
    bayes = GaussianNB().fit(X[TRAIN], Y[TRAIN])
    model = CalibratedModel(bayes).fit(X[HELD], Y[HELD])
    assert isinstance(model.calibrator_, Temperature)
    assert log_loss(model.predict_proba(X[TEST]), Y[TEST]) < log_loss(bayes.predict_proba(X[TEST]), Y[TEST])
    np.testing.assert_array_equal(model.predict(X[TEST]), bayes.predict(X[TEST]))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_decision_values_are_logits(n_classes):
    rows = n_classes > Y
    svm = LinearSVC().fit(X[rows][:200], Y[rows][:200])
    model = CalibratedModel(svm, Isotonic()).fit(X[rows][200:400], Y[rows][200:400])
    assert model.predict_proba(X[rows][400:]).shape[1] == n_classes
    np.testing.assert_array_equal(
        CalibratedModel(svm).fit(X[rows][200:400], Y[rows][200:400]).predict(X[rows][400:]),
        svm.predict(X[rows][400:]),
    )


def test_a_torch_module_is_left_as_it_was():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))
    module[2].eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    model = CalibratedModel(module, batch_size=50).fit(torch.from_numpy(X[HELD]).float(), torch.from_numpy(Y[HELD]))
    probs = model.predict_proba(X[TEST])
    np.testing.assert_array_equal(probs, model.predict_proba(X[TEST]), err_msg="dropout must be off")
    assert [part.training for part in module] == [True, True, False]
    for key, value in module.state_dict().items():
        torch.testing.assert_close(value, before[key])
    module.eval()
    with torch.no_grad():
        logits = module(torch.from_numpy(X[TEST]).float()).double().numpy()
    np.testing.assert_allclose(probs, softmax(logits / model.calibrator_.temperature_, axis=1), atol=1e-12)
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])


def test_one_output_is_the_logit_of_class_one():
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 1)
    with torch.no_grad():
        outputs = module(torch.from_numpy(X).float())[:, 0].numpy()
    labels = (outputs + np.random.default_rng(0).normal(size=len(X)) > 0).astype(int)
    model = CalibratedModel(module).fit(X[HELD], labels[HELD])
    np.testing.assert_array_equal(model.predict(X[TEST]), (outputs[TEST] > 0).astype(int))


def test_it_can_be_cloned_and_weighted():
    bayes = GaussianNB().fit(X[TRAIN], Y[TRAIN])
    model = CalibratedModel(bayes, Temperature(from_probs=True))
    assert clone(model).get_params()["batch_size"] == 1024
    weights = np.zeros(300)
    weights[:100] = 1
    one = model.fit(X[HELD], Y[HELD], sample_weight=weights).calibrator_.temperature_
    other = CalibratedModel(bayes).fit(X[HELD][:100], Y[HELD][:100]).calibrator_.temperature_
    assert one == pytest.approx(other)


def test_mistakes_give_an_error_of_one_sentence():
    bayes = GaussianNB().fit(X[TRAIN], NAMED[TRAIN])
    with pytest.raises(NotFittedError):
        CalibratedModel(bayes).predict_proba(X[TEST])
    with pytest.raises(ValueError, match="'heron', which the model does not know"):
        CalibratedModel(bayes).fit(X[HELD], ["heron"] * 300)
    with pytest.raises(ValueError, match="fitted classifier"):
        CalibratedModel(GaussianNB()).fit(X[HELD], NAMED[HELD])
    with pytest.raises(ValueError, match="got LinearRegression"):
        CalibratedModel(LinearRegression().fit(X, Y)).fit(X[HELD], Y[HELD])
    with pytest.raises(ValueError, match="1-D"):
        CalibratedModel(bayes).fit(X[HELD], NAMED[HELD][:, None])
