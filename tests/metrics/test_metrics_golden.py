"""Tests of metrics on published predictions, if the data folder is present."""

import numpy as np
import pytest
from metrics_cases import golden

from calibrant import metrics


def test_vgg_on_cifar10():
    file = golden("vgg_cifar10_probs.npz")
    probs, labels = file["probs"], file["labels"]
    assert metrics.ece(probs, labels) == pytest.approx(0.0398, abs=5e-5)
    assert metrics.accuracy(probs, labels) == pytest.approx(0.9359)
    # nearly every confidence is too high, so the smooth error is close to the plain gap
    assert metrics.smooth_ece(probs, labels) == pytest.approx(metrics.confidence_gap(probs, labels), abs=5e-4)
    assert metrics.calibration_test(probs, labels, n_resamples=99).p_value == 0.01


@pytest.mark.parametrize(("name", "value"), [("c10", 0.0475), ("c100", 0.1848)])
def test_resnet110(name, value):
    file = golden(f"resnet110_{name}_top1.npz")
    correct = file["label"] == file["pred"]
    assert metrics.ece(confidence=file["confidence"], correct=correct) == pytest.approx(value, abs=5e-5)
    narrow = file["confidence"].astype(np.float32)
    assert metrics.ece(confidence=narrow, correct=correct) == pytest.approx(value, abs=5e-5)
