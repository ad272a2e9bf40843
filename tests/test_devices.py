"""Tests of tensors on another device than the CPU that run without such a device.

``Far`` behaves like a tensor on a GPU: NumPy cannot read it before ``cpu()``.
"""

import numpy as np
import pytest
import torch
from torch import nn

import calibrant
from calibrant.bilevel import (
    CG,
    SGD,
    Adam,
    Bilevel,
    Checkpoint,
    EarlyStopping,
    History,
    Implicit,
    Neumann,
    Nystrom,
    Plain,
    Population,
    SampleWeights,
    solve,
)
from calibrant.estimators import load_classifier
from calibrant.methods.confidence import choose_map
from calibrant.metrics import bootstrap_interval, compare, true_ece
from calibrant.posthoc import CALIBRATORS
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


def test_maps_are_chosen_for_logits_of_any_device(predictions):
    probs, labels = predictions
    given = torch.from_numpy(probs).log(), torch.from_numpy(labels), torch.from_numpy(probs[:, 0])
    expected, found = choose_map(*given), choose_map(*map(far, given))
    assert found.gain == expected.gain
    assert torch.equal(found.map.constant, expected.map.constant)


def test_a_resumed_history_stays_on_the_device():
    history = History()
    history.load_state_dict({"inner_loss": torch.zeros(3, device="meta")})
    assert [row.device.type for row in history.rows["inner_loss"]] == ["meta"] * 3


@pytest.fixture
def default_device_without_values():
    """Every tensor that is created without a device is on "meta", where nothing can be computed."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def perceptron():
    with torch.device("cpu"):
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2))


def rows(count=40):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32))
    return x, (x[:, 0] > 0).long()


@pytest.mark.usefixtures("default_device_without_values")
class TestDefaultDevice:
    """Nothing depends on ``torch.set_default_device``."""

    @pytest.mark.parametrize("method", [None, "standard-stopped", "bo4sc", "flg-sece", "self-calibrated", "weights"])
    def test_fit_predict_save_and_load(self, method, tmp_path):
        settings = {} if method == "self-calibrated" else {"epochs": 2}
        result = calibrant.fit(perceptron(), rows(), rows(), method=method, **settings)
        assert result.probs(rows()[0].numpy()).device.type == "cpu"
        result.save(tmp_path / "net.calibrant")
        again = calibrant.Trained.load(tmp_path / "net.calibrant", perceptron())
        assert torch.allclose(again.probs(rows()[0]), result.probs(rows()[0]), atol=1e-5)
        assert result.module(rows()[0]).device.type == "cpu"

    def test_plain_training_resumes(self, tmp_path):
        problem, history = Bilevel(perceptron(), train=rows()), [History(), Checkpoint(tmp_path / "run", every=2)]
        settings = {"hypergradient": Plain(2), "inner_optimizer": Adam(0.01), "callbacks": history}
        assert problem.start_phi.device.type == "cpu"
        solve(problem, outer_steps=2, **settings)
        solution = solve(problem, outer_steps=4, resume=tmp_path / "run", **settings)
        assert history[0]["inner_loss"].shape == (4,)
        assert solution.logits(rows()[0].numpy()).device.type == "cpu"

    @pytest.mark.parametrize("solver", [CG(4), Neumann(4)], ids=["CG", "Neumann"])
    def test_a_population_of_early_stopped_members(self, solver):
        data = {"train": rows(), "val": rows()}
        net = nn.Linear(2, 2, device="cpu")  # the solver does not differentiate through BatchNorm's statistics
        members = [Bilevel(net, SampleWeights(40), seed=k, **data) for k in range(2)]
        how = {"hypergradient": Implicit(2, solve=solver), "callbacks": [EarlyStopping(patience=5)], "outer_steps": 2}
        solution = solve(Population(members), inner_optimizer=Adam(0.01), outer_optimizer=SGD(0.1), **how)
        assert solution.member(1).logits(rows()[0]).shape == (40, 2)

    def test_the_sketch_of_nystrom(self):
        diagonal = torch.tensor([1.0, 2.0, 3.0], device="cpu")
        assert Nystrom(2)(lambda v: (diagonal * v.T).T, torch.ones_like(diagonal)).value.device.type == "cpu"

    def test_metrics_and_calibrators(self, predictions):
        probs, labels = predictions
        assert calibrant.evaluate(probs, labels, n_resamples=20).models
        assert bootstrap_interval(probs, labels, n_resamples=100).low < 1
        assert compare(probs, probs[::-1].copy(), labels, n_resamples=100).p_value <= 1
        for name in CALIBRATORS:
            assert np.isfinite(CALIBRATORS[name]().fit(np.log(probs), labels).predict_proba(np.log(probs))).all(), name

    def test_classifiers(self, tmp_path):
        x, y = rows(60)
        found = calibrant.BO4SCClassifier(steps=2, epochs=4, device="cpu").fit(x.numpy(), y.numpy())
        found.save(tmp_path / "table.calibrant")
        again = load_classifier(tmp_path / "table.calibrant")
        np.testing.assert_array_equal(again.predict_proba(x.numpy()), found.predict_proba(x.numpy()))
