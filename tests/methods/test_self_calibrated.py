"""Tests of cross-fitting, and of the choice between candidates."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from calibrant.methods import Samples, SelfCalibrated, Task, fit_all, self_calibrated
from calibrant.methods.self_calibrated import clearly_worse
from tests.blobs import blobs, flip_labels


def task(flip=0.0, std=1.3, seed=0, train=300, val=150):
    data = blobs(train + val, std, seed=seed)
    x = torch.tensor((data.inputs - data.inputs.mean(0)) / data.inputs.std(0), dtype=torch.float32)
    labels, flipped = flip_labels(data.labels[:train], flip, seed=1)
    own = Task(Samples(x[:train], torch.tensor(labels)), Samples(x[train:], torch.tensor(data.labels[train:])), 5, seed)
    return own, torch.tensor(flipped)


@pytest.mark.parametrize("with_val", [True, False])
def test_the_same_outer_variables_for_all_networks(with_val):
    own, _ = task()
    fitted = SelfCalibrated(hidden=(8,), epochs=20).fit(own if with_val else dataclasses.replace(own, val=None))
    assert len(fitted.networks) == 10
    kinds: dict[int, list[torch.Tensor]] = {}
    for network in fitted.networks:  # perceptrons, and those that embed the columns
        kinds.setdefault(len(network.phi), []).append(network.phi)
    assert [len(phis) for phis in kinds.values()] == [5, 5]
    assert all(torch.equal(phi, phis[0]) for phis in kinds.values() for phi in phis)
    assert fitted.extras["candidate"] == "pooled"
    assert len(fitted.extras["l2"]) == 3  # two layers, and the embedding's own
    assert fitted.extras["suspicion"].shape == (300,)


def test_flipped_labels_are_noticed_and_found():
    own, flipped = task(flip=0.3)
    fitted = SelfCalibrated(hidden=(16,), epochs=100, folds=3, repeats=1).fit(own)
    assert fitted.extras["candidate"] == "label noise"
    assert fitted.extras["label_noise"][0].item() == pytest.approx(flipped.double().mean().item(), abs=0.05)
    score = fitted.extras["suspicion"]
    pairs = score[flipped][:, None] > score[~flipped][None]
    assert pairs.double().mean() > 0.9  # the area under the ROC curve


@pytest.mark.parametrize(
    ("broken", "kept"),
    [({"label noise"}, "pooled"), ({"pooled"}, "label noise"), ({"pooled", "label noise"}, "pooled")],
)
def test_a_failed_candidate_does_not_replace_a_working_one(monkeypatch, broken, kept):
    original = self_calibrated.calibrated_mean

    def mixture(fit, candidate, train):
        found = original(fit, candidate, train)
        return dataclasses.replace(found, failure="broke down" if candidate in broken else None)

    monkeypatch.setattr(self_calibrated, "calibrated_mean", mixture)
    (fitted,) = fit_all([(SelfCalibrated(hidden=(16,), epochs=60, folds=3, repeats=1), task(flip=0.3)[0])])
    assert fitted.extras["candidate"] == kept


def test_the_scale_of_sample_weights_does_not_matter_beside_none():
    own, _ = task(train=60, val=40)
    weights = torch.linspace(0.5, 1.5, 60)
    probs = [
        SelfCalibrated(hidden=(4,), epochs=10)
        .fit(Task(Samples(own.train.inputs, own.train.labels, scale * weights), own.val, 5, 0))
        .probs(own.val.inputs)
        for scale in (1.0, 1000.0)
    ]
    assert torch.allclose(*probs, atol=1e-4)


@pytest.mark.parametrize(("val", "choose"), [(30, 0.9), (6, 0.8), (4, 0.5), (12, 1 / 3)])
def test_small_validation_parts_keep_the_pooled_candidate(val, choose):
    own, _ = task(flip=0.5, train=100, val=val)
    fitted = SelfCalibrated(hidden=(4,), epochs=5, choose=choose).fit(own)
    assert torch.isfinite(fitted.probs(own.val.inputs)).all()


def test_without_refitting_one_network_sees_the_training_part_only():
    """Folds, repeats and ``choose`` are not used."""
    own, _ = task(flip=0.3)
    method = SelfCalibrated(hidden=(8,), epochs=20, refit=False)
    plain, other = (m.fit(own) for m in (method, dataclasses.replace(method, folds=2, repeats=1, choose=0.6)))
    assert len(plain.networks) == 1
    assert plain.networks[0].problem.train.size == 300
    assert torch.equal(plain.probs(own.val.inputs), other.probs(own.val.inputs))
    assert plain.extras["candidate"] == "pooled"
    assert "label_noise" not in plain.extras


@pytest.mark.parametrize("inputs", [torch.zeros(12, 2, 2), {"x": torch.zeros(12, 2)}], ids=["shape", "mapping"])
def test_other_members_need_rows_of_numbers(inputs):
    task = Task(Samples(inputs, torch.arange(12) % 2), None, 2, model=lambda seed: torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="needs rows of numbers"):
        SelfCalibrated(members=("network", "linear")).fit(task)


def test_clearly_worse_asks_for_more_than_a_standard_error():
    noise = torch.tensor([1.0, -1.0] * 50)
    assert not clearly_worse(noise, torch.zeros(100))
    assert clearly_worse(noise + 0.2, torch.zeros(100))
    assert not clearly_worse(noise - 0.2, torch.zeros(100))
