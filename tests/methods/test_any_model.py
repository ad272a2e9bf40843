"""Tests that every method trains every model: convolutions, named inputs, factories and loaders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.data import Indexed
from calibrant.methods import (
    BO4SC,
    METHODS,
    Calibrated,
    CrossFitted,
    Ensemble,
    Samples,
    SelfCalibrated,
    Standard,
    Task,
    fit_all,
)
from tests.methods.test_methods import short


def images(n=48, seed=0):
    """Bright on the left, on the right or below: three classes of small images."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = 0.3 * torch.randn(n, 1, 4, 4, generator=generator)
    x[y == 0, :, :, :2] += 1
    x[y == 1, :, :, 2:] += 1
    x[y == 2, :, 2:] += 1
    return x, y


def cnn(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 3))


X, Y = images()
TRAIN, VAL = (X[:36], Y[:36]), (X[36:], Y[36:])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_a_convolutional_network(name):
    model = cnn()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = calibrant.fit(model, TRAIN, VAL, method=short(METHODS[name].method, epochs=6))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    probs = result.probs(X)
    assert probs.shape == (48, 3)
    assert torch.allclose(probs.sum(1), torch.ones(48, dtype=probs.dtype))
    assert torch.equal(result.classes(X), probs.argmax(1))
    assert torch.equal(result.confidence(X), probs.amax(1))
    assert torch.allclose(result.logits(X).softmax(1), probs, atol=1e-9)
    assert len(result.modules) == len(result.networks) == {"ensemble": 5, "self-calibrated": 10}.get(name, 1)
    again = calibrant.fit(cnn(), TRAIN, VAL, method=short(METHODS[name].method, epochs=6))
    assert torch.equal(again.probs(X), probs)


@pytest.mark.parametrize("method", [Ensemble(Standard(epochs=5), members=3), SelfCalibrated(epochs=10, folds=2)])
def test_networks_are_redrawn_or_built_by_a_factory(method):
    drawn = calibrant.fit(cnn(), TRAIN, VAL, method=method)
    built = calibrant.fit(cnn, TRAIN, VAL, method=method)
    starts = [network.problem.start for network in drawn.networks]
    assert len({tuple(start.tolist()) for start in starts}) == len(starts)
    for mine, theirs in zip(starts, built.networks, strict=True):
        assert torch.equal(mine, theirs.problem.start)  # the layers draw as when it was built
    kept = calibrant.fit(cnn(), TRAIN, VAL, method=method, redraw=False)
    assert all(torch.equal(n.problem.start, kept.networks[0].problem.start) for n in kept.networks)
    assert torch.equal(kept.networks[0].problem.start, kept.networks[0].problem.view.read(cnn())[0])


def test_a_single_network_starts_from_the_given_parameters():
    for method in (Standard(epochs=1), BO4SC(epochs=5), SelfCalibrated(epochs=10, refit=False)):
        (network,) = calibrant.fit(cnn(7), TRAIN, VAL, method=method).networks
        assert torch.equal(network.problem.start, network.problem.view.read(cnn(7))[0])


class Own(nn.Module):
    """A module with its own parameter and without a method that draws it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16, 3))

    def forward(self, x):
        return x.flatten(1) @ self.weight


def test_a_network_without_reset_says_what_to_do():
    with pytest.raises(ValueError, match=r"model=lambda seed.*redraw=False"):
        calibrant.fit(Own(), TRAIN, VAL, method=Ensemble(Standard(epochs=1)), redraw=True)
    for redraw in (None, False):
        result = calibrant.fit(Own(), TRAIN, VAL, method=Ensemble(Standard(epochs=1)), redraw=redraw)
        assert len(result.networks) == 5


class Tokens(nn.Module):
    """Takes its inputs by name and returns a mapping, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(6, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask=None):
        shown = self.embed(input_ids) * attention_mask.unsqueeze(-1)
        return {"logits": self.last(shown.sum(1) / attention_mask.sum(1, keepdim=True))}


class Sentences(torch.utils.data.Dataset):
    """Class 1 has more high tokens."""

    def __init__(self, n=40):
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.arange(n) % 2
        self.ids = torch.randint(0, 4, (n, 5), generator=generator) + 2 * self.labels.unsqueeze(1)
        self.mask = torch.ones(n, 5)
        self.mask[:, 4] = torch.arange(n) % 3 > 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        item = {"input_ids": self.ids[row], "attention_mask": self.mask[row], "labels": self.labels[row]}
        return item | {"text": f"sentence {row}"}


@pytest.mark.parametrize(
    "method",
    [
        Standard(epochs=40),
        BO4SC(epochs=20),
        SelfCalibrated(epochs=20, folds=2),
        CrossFitted(base=Standard(epochs=40)),
        Calibrated("temperature", Standard(epochs=40)),
        Ensemble(Standard(epochs=40), members=2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_inputs_by_name(method):
    data = Sentences()
    inputs = {"input_ids": data.ids, "attention_mask": data.mask}
    torch.manual_seed(0)
    model = Tokens()
    loader = DataLoader(Indexed(data), batch_size=10, shuffle=True)
    for train in (loader, (inputs, data.labels)):
        result = calibrant.fit(model, train, loader, method=method)
        assert (result.classes(inputs) == data.labels).double().mean() > 0.7


class Stream(torch.utils.data.IterableDataset):
    """A data set without a length."""

    def __iter__(self):
        return iter(zip(*TRAIN, strict=True))


def test_a_loader_without_a_length():
    loader = DataLoader(Stream(), batch_size=10)
    result = calibrant.fit(cnn(), loader, loader, method=Standard(epochs=5, patience=50))
    assert result.solution.outer_steps == 4  # five epochs of four batches, five steps each
    with pytest.raises(ValueError, match="must have a dataset with a length"):
        calibrant.fit(cnn(), DataLoader(Stream(), batch_size=10), VAL, method=BO4SC(epochs=1))


def test_labels_by_name():
    items = [{"x": TRAIN[0].flatten(1), "kind": TRAIN[1], "label": TRAIN[1].flip(0)}]

    class Named(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    first, second = (
        calibrant.fit(Named(16, 3), items, method=Standard(epochs=30, learning_rate=0.1), labels=name, seed=1)
        for name in ("kind", None)
    )
    x = {"x": TRAIN[0].flatten(1)}
    assert (first.classes(x) == TRAIN[1]).double().mean() > 0.9
    assert (second.classes(x) == TRAIN[1].flip(0)).double().mean() > 0.5
    with pytest.raises(ValueError, match=r"labels under 'wrong'; got \['kind', 'label', 'x'\]"):
        calibrant.fit(Named(16, 3), items, method=Standard(epochs=1), labels="wrong")


def shifted(inputs, generator):
    """Images moved by a column, at random."""
    return torch.roll(inputs, int(torch.randint(0, 2, (1,), generator=generator)), -1)


def normalised(inputs):
    return inputs.float() / 255


def test_images_stay_bytes_until_they_are_in_a_batch():
    x = ((X - X.min()) / (X.max() - X.min()) * 255).to(torch.uint8)
    part = Samples(x[:36], Y[:36], augment=shifted, prepare=normalised)
    task = Task(part, Samples(x[36:], Y[36:], prepare=normalised), 3, seed=2, model=cnn())
    methods = [Standard(epochs=24, batch_size=12, patience=200, learning_rate=rate) for rate in (0.02, 0.005)]
    alone = methods[0].fit(task)
    assert (alone.classes(normalised(x[36:])) == Y[36:]).double().mean() > 0.6
    stream = alone.networks[0].problem.train
    assert stream.inputs.dtype == torch.uint8
    assert stream.batch(1).inputs.dtype == torch.float32
    assert not torch.equal(stream.batch(1).inputs, normalised(x[:36][stream.batch(1).index]))
    calibrated = Calibrated("temperature", methods[0]).fit(task)
    assert torch.equal(calibrated.classes(normalised(x)), alone.classes(normalised(x)))
    for method, fitted in zip(methods, fit_all([(method, task) for method in methods]), strict=True):
        torch.testing.assert_close(
            fitted.probs(normalised(x)), method.fit(task).probs(normalised(x)), atol=1e-4, rtol=0
        )


def test_the_default_network_is_for_rows_of_numbers():
    task = Task(Samples(*TRAIN), Samples(*VAL), 3)
    with pytest.raises(ValueError, match=r"takes rows of numbers.*got inputs of \(36, 1, 4, 4\)"):
        Standard(epochs=1).fit(task)
    assert Standard(epochs=1).fit(replace(task, model=cnn())).failure is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),  # runs as a population
        cnn,  # convolutions on a CPU: one by one
        lambda: Noisy(),  # random numbers that cannot be passed in: one by one
    ],
    ids=["linear", "convolutions", "noisy"],
)
def test_members_equal_single_runs_however_they_are_trained(make):
    model = make().double()
    tasks = [Task(Samples(TRAIN[0].double(), TRAIN[1]), None, 3, seed, model) for seed in range(2)]
    for task, found in zip(tasks, fit_all([(Standard(epochs=10), t) for t in tasks]), strict=True):
        x = task.train.inputs
        torch.testing.assert_close(found.probs(x), Standard(epochs=10).fit(task).probs(x), atol=1e-8, rtol=0)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(x.flatten(1) + (0.1 * torch.randn_like(x.flatten(1)) if self.training else 0))


def test_loaders_train_an_ensemble_and_a_calibrator():
    loader = DataLoader(TensorDataset(*TRAIN), batch_size=12, shuffle=True)
    held = DataLoader(TensorDataset(*VAL), batch_size=5)
    result = calibrant.fit(
        cnn(), loader, held, method=Calibrated("temperature", Ensemble(Standard(epochs=5), members=2))
    )
    assert len(result.networks) == 2
    assert torch.isfinite(result.probs(X)).all()
