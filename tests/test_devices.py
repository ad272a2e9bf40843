"""Tests of tensors on another device than the CPU that run without such a device.

``Far`` behaves like a tensor on a GPU: NumPy cannot read it before ``cpu()``.
"""

import numpy as np
import pytest
import torch

import calibrant
from calibrant.metrics import true_ece
from calibrant.selective import cross_conformal_rule


class Far(torch.Tensor):
    def __array__(self, *args, **kwargs):
        raise TypeError("can't convert a tensor of this device to numpy")

    def numpy(self, **kwargs):
        raise TypeError("can't convert a tensor of this device to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def far(values):
    return torch.as_tensor(values).as_subclass(Far)


@pytest.fixture
def predictions():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), size=60)
    return probs, rng.integers(0, 3, 60)


def test_a_far_tensor_refuses_numpy():
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(far([1.0]))


def test_true_ece_reads_tensors_of_any_device(predictions):
    confidence, right = predictions[0].max(1), predictions[0][:, 0]
    expected = true_ece(confidence=confidence, right=right)
    assert true_ece(confidence=far(confidence), right=far(right)) == expected


def test_folds_may_be_on_any_device(predictions):
    folds = np.arange(60) % 3
    expected = cross_conformal_rule(*predictions, folds, score="lac")
    assert cross_conformal_rule(*map(far, predictions), far(folds), score="lac") == expected


def test_evaluate_reads_tensors_of_any_device(predictions):
    probs, labels = predictions
    others = {"predicted": probs.argmin(1), "groups": labels, "sample_weight": probs[:, 0]}
    expected = calibrant.evaluate(probs, labels, **others, n_resamples=20)
    found = calibrant.evaluate(far(probs), far(labels), **{k: far(v) for k, v in others.items()}, n_resamples=20)
    assert found.models["model"] == expected.models["model"]
