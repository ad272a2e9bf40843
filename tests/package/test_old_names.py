"""Tests of old public names outside the engine: they work for one version, with a warning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import calibrant.data
import calibrant.estimators
import calibrant.posthoc
import calibrant.report.evaluation
import calibrant.tables
from calibrant import losses, methods
from calibrant.data import Batch, LoaderStream, TensorStream, vision
from calibrant.experiments.bo4sc import grid
from calibrant.experiments.common.old_names import current_names
from calibrant.methods.confidence import LearnedConfidence
from calibrant.methods.meta_regularization import FocalControl, MetaRegularization
from calibrant.methods.reweighting import Reweighting
from calibrant.selective import SetRule, conformal_rule
from tests.renaming import check_former_name

X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1])
W = torch.tensor([1.0, 2.0, 3.0])
PART = methods.Part(X, Y)
RULE = conformal_rule(np.full((20, 2), 0.5), np.arange(20) % 2)
NORMAL = np.random.default_rng(0).normal(size=(80, 2))
CLF = calibrant.CrossCalibrated(LogisticRegression(), cv=2, calibrator=None).fit(NORMAL, NORMAL[:, 0] > 0)
IMAGE_METHODS = {made.__name__: made for made in (MetaRegularization, FocalControl, LearnedConfidence, Reweighting)}

# Each entry: how to call it by the old name, by the present one, and the value that both must share.
RENAMED = {
    "BO4SC": (
        lambda: methods.BO4SC(outer_rate=3.0, also=("l2",), also_rate=0.1),
        lambda: methods.BO4SC(outer_learning_rate=3.0, also=("l2",), also_learning_rate=0.1),
        repr,
    ),
    "BO4SC.outer_rate": (lambda: methods.BO4SC(outer_learning_rate=3.0).outer_rate, lambda: 3.0, float),
    "SelfCalibrated": (
        lambda: methods.SelfCalibrated(outer_rate=3.0),
        lambda: methods.SelfCalibrated(outer_learning_rate=3.0),
        repr,
    ),
    "InstanceWeights": (
        lambda: methods.InstanceWeights(outer_rate=3.0),
        lambda: methods.InstanceWeights(outer_learning_rate=3.0),
        repr,
    ),
    **{
        name: (
            lambda made=made: made(meta_rate=0.5, meta_batch=8),
            lambda made=made: made(outer_learning_rate=0.5, outer_batch_size=8),
            repr,
        )
        for name, made in IMAGE_METHODS.items()
    },
    **{
        f"{name}.meta_rate": (lambda made=made: made(outer_learning_rate=0.5).meta_rate, lambda: 0.5, float)
        for name, made in IMAGE_METHODS.items()
    },
    "Task": (
        lambda: methods.Task(PART, None, classes=2),
        lambda: methods.Task(PART, None, n_classes=2),
        lambda task: task.n_classes,
    ),
    "Task.classes": (lambda: methods.Task(PART, None, 2).classes, lambda: 2, int),
    "Part": (
        lambda: methods.Part(X, Y, weights=W),
        lambda: methods.Part(X, Y, sample_weight=W),
        lambda part: part.sample_weight.tolist(),
    ),
    "Part.weights": (lambda: methods.Part(X, Y, W).weights, lambda: W, torch.Tensor.tolist),
    "TensorStream": (
        lambda: TensorStream(X, Y, weights=W),
        lambda: TensorStream(X, Y, sample_weight=W),
        lambda stream: stream.batch(0).sample_weight.tolist(),
    ),
    "Batch.weights": (lambda: Batch(X, Y, sample_weight=W).weights, lambda: W, torch.Tensor.tolist),
    "LoaderStream": (
        lambda: LoaderStream([(X, Y)], classes=2),
        lambda: LoaderStream([(X, Y)], n_classes=2),
        lambda stream: stream.n_classes,
    ),
    "Mixup": (lambda: vision.Mixup(1.0, classes=2), lambda: vision.Mixup(1.0, n_classes=2), lambda made: made),
    "flip_labels": (
        lambda: calibrant.data.flip_labels(Y.numpy(), 0.5, classes=2, seed=0),
        lambda: calibrant.data.flip_labels(Y.numpy(), 0.5, n_classes=2, seed=0),
        lambda pair: [values.tolist() for values in pair],
    ),
    "Synthetic.classes": (lambda: calibrant.data.blobs(9, seed=0).classes, lambda: 5, int),
    "SetRule.classes": (lambda: RULE.classes, lambda: 2, int),
    "rejection_rule": (
        lambda: CLF.rejection_rule(0.3, confidence=0.6),
        lambda: CLF.rejection_rule(0.3, level=0.6),
        lambda rule: rule.to_json(),
    ),
    "set_rule": (lambda: CLF.set_rule(method="lac"), lambda: CLF.set_rule(score="lac"), lambda rule: rule),
    "predict_set": (
        lambda: CLF.predict_set(NORMAL, method="lac", seed=0),
        lambda: CLF.predict_set(NORMAL, score="lac", random_state=0),
        np.ndarray.tolist,
    ),
    "sece": (
        lambda: losses.sece(X, Y, weights=W),
        lambda: losses.sece(X, Y, sample_weight=W),
        float,
    ),
    "dece": (
        lambda: losses.dece(X, Y, weights=W),
        lambda: losses.dece(X, Y, sample_weight=W),
        float,
    ),
    "data.load": (lambda: calibrant.data.load, lambda: calibrant.data.load_problem, lambda f: f),
    "data.Problem": (lambda: calibrant.data.Problem, lambda: calibrant.data.SyntheticProblem, lambda c: c),
    "data.Table": (lambda: calibrant.data.Table, lambda: calibrant.data.LabelledTable, lambda c: c),
    "posthoc.load": (lambda: calibrant.posthoc.load, lambda: calibrant.posthoc.load_calibrator, lambda f: f),
    "posthoc.save": (lambda: calibrant.posthoc.save, lambda: calibrant.posthoc.save_calibrator, lambda f: f),
    "estimators.load": (
        lambda: calibrant.estimators.load,
        lambda: calibrant.estimators.load_classifier,
        lambda f: f,
    ),
    "evaluation.Verdict": (
        lambda: calibrant.report.evaluation.Verdict,
        lambda: calibrant.report.evaluation.CalibrationVerdict,
        lambda c: c,
    ),
    "tables.Trained": (lambda: calibrant.tables.Trained, lambda: calibrant.tables.TrainingResult, lambda c: c),
}


@pytest.mark.parametrize("name", RENAMED)
def test_old_names_work_with_a_warning(name):
    check_former_name(*RENAMED[name], file=__file__)


def test_unknown_names_are_errors():
    with pytest.raises(AttributeError, match=r"module 'calibrant\.data' has no attribute 'no_such_name'"):
        _ = calibrant.data.no_such_name


def test_rules_with_old_names_are_read():
    text = RULE.to_json()
    assert '"n_classes": 2' in text
    assert SetRule.from_json(text.replace('"n_classes"', '"classes"')) == RULE


def test_grids_with_old_names_are_read():
    with pytest.warns(DeprecationWarning, match="is now called outer_learning_rate"):
        assert grid.complete({"weight_lr": [1.0]})["outer_learning_rate"] == [1.0]


def test_records_with_old_names_are_read():
    old = {"settings": {"bac": {"outer_rate": 3.0, "hidden": [8]}}, "grid": {"lr": [1.0]}, "lrs": 2}
    present = {
        "settings": {"bac": {"outer_learning_rate": 3.0, "hidden": [8]}},
        "grid": {"learning_rate": [1.0]},
        "lrs": 2,
    }
    assert current_names(old) == current_names(present) == present
