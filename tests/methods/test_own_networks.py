"""Tests of the second paper's methods through ``calibrant.fit``, on networks and loaders as users have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import calibrant
from calibrant.methods.catalogue import IMAGE_METHODS, Recipe, with_recipe
from calibrant.methods.confidence import LearnedConfidence
from calibrant.methods.core.samples import as_part
from calibrant.methods.image_networks import NetworkTraining, Reweighting
from calibrant.methods.meta_regularization import MetaRegularization, gamma_of
from calibrant.models import small_cnn

CLASSES = 3
RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.05)
META = ("flg-sece", "ce-dece", "flg-sece-published", "focal-control", "recommended")
EACH_META = pytest.mark.parametrize("name", META)


def method(name):
    return with_recipe(IMAGE_METHODS[name].method, RECIPE)


def rows(n=45, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, CLASSES))


class Attention(nn.Module):
    """A block whose attention draws its own dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(self.block(self.first(x.view(-1, 4, 2))).mean(1))


@EACH_META
def test_attention_with_dropout(name):
    torch.manual_seed(0)
    model, found = Attention(), []
    for seed in range(2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(calibrant.fit(model, rows(), rows(30, 1), method=method(name)).probs(rows()[0]))
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*found)
    assert found[0].isfinite().all()


@EACH_META
def test_frozen_layers_stay_in_evaluation_mode(name):
    model = perceptron()
    result = calibrant.fit(model, rows(), rows(30, 1), method=method(name), freeze="backbone")
    (module,) = result.modules
    for key in ("0.weight", "1.running_mean", "1.running_var"):
        assert torch.equal(module.state_dict()[key], model.state_dict()[key])


def test_a_network_with_spectral_normalisation_is_not_changed():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(6, CLASSES))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    calibrant.fit(model, rows(), rows(30, 1), method=method("ce"))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


class Named(nn.Module):
    """A network whose last layer is not linear."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 6)
        self.last = nn.Sequential(nn.Dropout(0.1), nn.Linear(6, CLASSES), nn.Tanh())

    def forward(self, x):
        return self.last(torch.relu(self.body(x)))


@EACH_META
def test_a_head_can_be_named(name):
    torch.manual_seed(0)
    result = calibrant.fit(Named(), rows(), rows(30, 1), method=method(name), head="last")
    assert result.probs(rows()[0]).isfinite().all()


def test_without_a_head_an_error_tells_how_to_name_it():
    with pytest.raises(ValueError, match=r"Name a submodule whose output is the logits: head='last' \(Sequential\)"):
        calibrant.fit(Named(), rows(), rows(30, 1), method=method("flg-sece"))
    result = calibrant.fit(Named(), rows(), rows(30, 1), method=method("recommended"))
    assert result.probs(rows()[0]).isfinite().all()


class Maps(nn.Module):
    """A network whose head takes maps of features."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv1d(1, 4, 3)
        self.last = nn.Sequential(nn.Conv1d(4, CLASSES, 6), nn.Flatten())

    def forward(self, x):
        return self.last(torch.relu(self.body(x[:, None])))


def test_gamma_net_refuses_features_that_are_not_rows():
    with pytest.raises(ValueError, match=r"shape \(samples, 24\), one row for each sample; got \(\d+, 4, 6\)"):
        calibrant.fit(Maps(), rows(), rows(30, 1), method=method("flg-sece"), head="last")
    result = calibrant.fit(Maps(), rows(), rows(30, 1), method=method("focal-control"), head="last")
    assert result.probs(rows()[0]).isfinite().all()


class Pairs(IterableDataset):
    """Samples without a length."""

    def __iter__(self):
        return zip(*rows(), strict=True)


class Records(Dataset):
    """Samples as mappings."""

    def __len__(self):
        return len(rows()[1])

    def __getitem__(self, index):
        x, y = rows()
        return {"input": x[index], "labels": y[index]}


LOADERS = {
    "a smaller last batch": lambda: DataLoader(TensorDataset(*rows()), 16, shuffle=True),
    "no length": lambda: DataLoader(Pairs(), 16),
    "mappings": lambda: DataLoader(Records(), 16),
}


@pytest.mark.parametrize("name", ["flg-sece", "ce-dece", "flg-sece-published", "focal-control"])
@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_loaders(loader, name):
    """With more batches than the memory of features holds, so that it drops batches of another size."""
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    long = with_recipe(method(name), Recipe(epochs=5, learning_rate=0.05))
    result = calibrant.fit(model, loader(), DataLoader(TensorDataset(*rows(30, 1)), 7), method=long)
    assert result.probs(rows()[0]).isfinite().all()
    if name.startswith("flg"):
        assert gamma_of(result.fitted, as_part(loader(), model)).shape == (45,)


@pytest.mark.parametrize("select", ["error", "nll"])
def test_the_best_state_can_be_chosen_by_a_loader(select):
    choosing = with_recipe(IMAGE_METHODS["ce"].method, Recipe(epochs=4, learning_rate=0.05, select=select))
    held = rows(30, 1)
    found = [
        calibrant.fit(perceptron(), rows(), val, method=choosing).probs(rows()[0])
        for val in (held, DataLoader(TensorDataset(*held), 7))
    ]
    torch.testing.assert_close(*found)


def test_mixup_of_a_loader_is_an_error():
    loader = DataLoader(TensorDataset(*rows()), 16)
    with pytest.raises(ValueError, match="mixup needs tensors"):
        calibrant.fit(perceptron(), loader, rows(30, 1), method=method("mixup"))


def test_text_labels_are_an_error_that_says_what_to_do():
    x, _ = rows()
    with pytest.raises(ValueError, match=r"labels of train must be integers .* Number the classes"):
        calibrant.fit(perceptron(), (x.numpy(), np.array(["a"] * len(x))), rows(30, 1))


WRONG = [
    (MetaRegularization, {"outer_variable": "gama"}, "outer_variable must be 'gamma-net'"),
    (MetaRegularization, {"outer_loss": "ece"}, "outer_loss must be one of 'bce'"),
    (
        MetaRegularization,
        {"outer_loss": "dece"},
        r"settings of the outer loss 'dece' \(strength, bins.*got strength, ord",
    ),
    (MetaRegularization, {"outer_learning_rate": 0.0}, "outer_learning_rate must be positive"),
    (MetaRegularization, {"start": 1.0}, "start at least 0 and below 1; got 0.02, 1024 and 1.0"),
    (Reweighting, {"outer_batch_size": 0}, "outer_batch_size at least 1"),
    (LearnedConfidence, {"outer_loss": "ce"}, "outer_loss must be 'nll' or 'brier'"),
    (LearnedConfidence, {"distorted": 2.0}, "distorted between 0 and 1"),
    (Recipe, {"schedule": "cosine"}, "schedule must be 'one-cycle' or 'steps'"),
    (Recipe, {"select": "ece"}, "select must be 'last', 'error' or 'nll'"),
    (Recipe, {"epochs": 0}, "epochs must be at least 1"),
    (Recipe, {"learning_rate": -1.0}, "learning_rate must be positive"),
]


@pytest.mark.parametrize(("kind", "settings", "sentence"), WRONG)
def test_settings_are_checked(kind, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(**settings)


class Stopped(Exception):
    """Raised in place of training, with the recipe of the method."""


@pytest.mark.parametrize("name", ["recommended", "ce-ts"])
@pytest.mark.parametrize(
    ("network", "compile", "eagerly"),
    [(perceptron, "auto", True), (perceptron, "inductor", False), (lambda: small_cnn(3), "auto", False)],
    ids=["your module", "on demand", "a network of the library"],
)
def test_your_modules_are_not_compiled_unasked(monkeypatch, network, compile, eagerly, name):
    def stop(self, *_args, **_kwargs):
        raise Stopped(self.recipe.eager)

    monkeypatch.setattr(NetworkTraining, "problem", stop)
    x, y = rows()
    x = x if network is perceptron else x.new_zeros(len(x), 1, 8, 8)
    with pytest.raises(Stopped) as caught:
        calibrant.fit(network(), (x, y), (x + 1, y), method=name, compile=compile)
    assert caught.value.args == (eagerly,)
