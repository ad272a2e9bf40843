"""Tests of ``calibrant.fit`` with your own network and each method."""

import doctest

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.data import Indexed
from calibrant.methods import BO4SC, Samples, SelfCalibrated, Standard, Task, Trained
from calibrant.methods.fit import fit as custom
from calibrant.methods.standard import CHECK_EVERY
from calibrant.models.architectures.mlp import mlp
from tests.estimators.cases import three_classes


def data(n=90):
    X, y = three_classes(n)
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "method",
    [
        BO4SC(epochs=30, hidden=(8,)),
        BO4SC(epochs=30, hidden=(8,), also=("l2", "label-noise"), keep_history=True, outer_loss="nll", batch_size=20),
        Standard(epochs=30, hidden=(8,)),
        Standard(epochs=30, hidden=(8,), smoothing=0.1),
    ],
    ids=["bo4sc", "bo4sc with companions", "standard", "label smoothing"],
)
def test_the_methods_own_network_is_trained_as_the_method_does(method):
    """Given the method's own network, ``calibrant.fit`` takes the same steps as the method."""
    x, y = data()
    train, val = (x[:60], y[:60]), (x[60:], y[60:])
    expected = method.fit(Task(Samples(*train), Samples(*val), 3, seed=4))
    result = calibrant.fit(mlp(2, 3, hidden=(8,), seed=4), train, val, method=method, seed=4)
    torch.testing.assert_close(result.probs(x), expected.probs(x), atol=1e-4, rtol=0)
    for name, value in expected.extras.items():
        if name != "history":
            torch.testing.assert_close(result.extras[name], value, atol=1e-3, rtol=0)


@pytest.mark.parametrize("loaded", [False, True])
def test_patience_is_at_least_five_epochs_of_mini_batches(loaded):
    """The held-out loss only rises, so the first evaluation is the best, and all further steps are patience."""
    x, y = data(120)
    linear = nn.Linear(2, 3)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    given = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True) if loaded else (x, y)
    method = Standard(epochs=20, patience=10, learning_rate=0.002, batch_size=None if loaded else 6)
    result = calibrant.fit(linear, given, (x, (y + 1) % 3), method=method)
    assert result.solution.outer_steps == 1 + 5 * 20 // CHECK_EVERY


@pytest.mark.parametrize("method", [BO4SC(epochs=5, also=("l2",), keep_history=True), Standard(epochs=5)])
def test_loaders(method):
    x, y = data(200)
    train = DataLoader(Indexed(TensorDataset(x[:150], y[:150])), batch_size=32, shuffle=True)
    val = DataLoader(TensorDataset(x[150:], y[150:]), batch_size=25)
    result = calibrant.fit(net(), train, val, method=method)
    assert result.solution.outer_steps == 5  # five epochs of five batches, five inner steps each
    if isinstance(method, BO4SC):
        assert result.sample_weights.shape == (150,)
        assert result.extras["sample_weights_history"].shape == (6, 150)
        assert (result.sample_weights < 1).any()
        assert result.extras["l2"].numel() > 0
    again = calibrant.fit(net(), train, val, method=method)
    assert torch.equal(again.probs(x), result.probs(x))


def test_what_is_refused():
    x, y = data()
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    with pytest.raises(ValueError, match="which samples they hold"):
        calibrant.fit(net(), loader, (x, y), method=BO4SC(epochs=1))
    with pytest.raises(ValueError, match="Use another form of weights for a loader"):
        calibrant.fit(net(), loader, (x, y), method=BO4SC(epochs=1, weights="neighbours"))
    with pytest.raises(ValueError, match="needs a validation part"):
        calibrant.fit(net(), (x, y), method=BO4SC())
    with pytest.raises(ValueError, match="needs a validation part"):
        calibrant.fit(net(), (x, y), method=Standard(patience=5))
    with pytest.raises(TypeError, match="must be a value such as"):
        calibrant.fit(net(), (x, y), method=SelfCalibrated)
    with pytest.raises(ValueError, match=r"method must be one of .*'standard', .* got 'nothing'"):
        calibrant.fit(net(), (x, y), method="nothing")
    with pytest.raises(TypeError, match="got a generator"):
        calibrant.fit(net(), (pair for pair in [(x, y)]), (x, y))
    with pytest.raises(ValueError, match="one row of logits"):
        calibrant.fit(nn.Linear(2, 1), (x, y), (x, y))


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int16])
@pytest.mark.parametrize("loaded", [False, True])
def test_labels_may_be_whole_numbers_of_any_width(kind, loaded):
    x, y = data()

    def given(labels):
        return DataLoader(Indexed(TensorDataset(x, labels)), batch_size=30) if loaded else (x.numpy(), labels.numpy())

    method = BO4SC(epochs=5)
    expected = calibrant.fit(net(), given(y), given(y), method=method).probs(x)
    assert torch.equal(calibrant.fit(net(), given(y.to(kind)), given(y.to(kind)), method=method).probs(x), expected)


def test_labels_of_two_classes_may_be_truth_values():
    x, y = data()
    wide, method = nn.Linear(2, 2), Standard(epochs=5)
    first, second = (calibrant.fit(wide, (x, labels), method=method).probs(x) for labels in (y == 0, (y == 0).long()))
    assert torch.equal(first, second)


def test_labels_that_are_no_classes_of_the_network():
    x, y = data()
    method = Standard(epochs=5)
    with pytest.raises(ValueError, match="integers from 0 to 2"):
        calibrant.fit(net(), (x, y.float()), method=method)
    for wrong in (y + 1, y - 1):
        with pytest.raises(ValueError, match=r"must lie in 0\.\.2"):
            calibrant.fit(net(), (x, wrong), method=method)
    with pytest.raises(ValueError, match=r"must lie in 0\.\.2"):
        calibrant.fit(net(), (x, y), (x, y + 1), method=Standard(epochs=5, patience=5))
    late = torch.where(torch.arange(90) == 89, 3, y)  # in the last batch
    with pytest.raises(ValueError, match=r"got values from 0 to 3"):
        calibrant.fit(net(), DataLoader(TensorDataset(x, late), batch_size=30), method=method)


def test_names_are_loaded_when_used():
    assert {"fit", "Trained", "BO4SCClassifier", "SelfCalibratedClassifier", "methods", "estimators"} <= set(
        dir(calibrant)
    )
    assert calibrant.fit is custom.fit
    assert calibrant.Trained is Trained
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        calibrant.nothing  # noqa: B018


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(custom).failed == 0


def test_arrays_of_double_precision_are_taken_in_the_networks():
    x, y = data()
    result = calibrant.fit(net().double(), (x.numpy().astype(np.float32), y.numpy()), (x, y), method=BO4SC(epochs=5))
    assert result.solution.params.dtype == torch.float64
