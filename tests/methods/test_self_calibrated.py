"""Cross-fitting, the choice between candidates, and the temperature."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calibrant.data import blobs, flip_labels
from calibrant.methods import Part, SelfCalibrated, Task
from calibrant.methods.crossfit import CrossFit, Fold, deal
from calibrant.methods.held_out import temperature_and_bias
from calibrant.methods.self_calibrated import clearly_worse, labels_differ


def task(flip=0.0, std=1.3, seed=0, train=300, val=150):
    data = blobs(train + val, std, seed=seed)
    x = torch.tensor((data.inputs - data.inputs.mean(0)) / data.inputs.std(0), dtype=torch.float32)
    labels, flipped = flip_labels(data.labels[:train], flip, 5, seed=1)
    own = Task(Part(x[:train], torch.tensor(labels)), Part(x[train:], torch.tensor(data.labels[train:])), 5, seed)
    return own, torch.tensor(flipped)


@pytest.mark.parametrize(("rows", "number", "train"), [(100, 5, 70), (103, 5, 71), (47, 3, 30), (20, 2, 10)])
@pytest.mark.parametrize("repeats", [1, 2])
def test_folds_are_equal_disjoint_and_keep_rows_for_choosing(rows, number, train, repeats):
    labels = torch.arange(rows) % 4
    dealt = deal(labels, number, seed=0, repeats=repeats, choose=1 / 3, choose_from=slice(train, None))
    assert len(dealt) == number * repeats
    assert len({(len(f.train), len(f.judge), len(f.choose)) for f in dealt}) == 1
    for repeat in range(repeats):
        held = torch.cat([f.held for f in dealt[repeat * number : (repeat + 1) * number]])
        assert len(held) == len(held.unique()) > rows - 3 * number
    judged, chosen = (torch.cat([getattr(f, purpose) for f in dealt]).unique() for purpose in ("judge", "choose"))
    assert not set(judged.tolist()) & set(chosen.tolist())
    assert len(chosen)
    assert (chosen >= train).all()
    for fold in dealt:
        everything = torch.cat([fold.train, fold.held])
        assert torch.equal(everything.sort().values, torch.arange(rows))


def test_only_validation_rows_are_held_out_where_they_alone_are_trusted():
    dealt = deal(torch.arange(100) % 3, 5, seed=0, held_from=slice(70, None), choose=1 / 3, choose_from=slice(70, None))
    for fold in dealt:
        assert (fold.held >= 70).all()
        assert len(fold.train) == 94


def test_the_same_outer_variables_for_all_networks():
    fitted = SelfCalibrated(hidden=(8,), epochs=20).fit(task()[0])
    assert len(fitted.networks) == 10
    assert all(torch.equal(n.phi, fitted.networks[0].phi) for n in fitted.networks)
    assert fitted.extras["candidate"] == "pooled"
    assert fitted.extras["l2"].shape == (2,)
    assert fitted.extras["suspicion"].shape == (300,)


def test_flipped_labels_are_noticed_and_found():
    own, flipped = task(flip=0.3)
    fitted = SelfCalibrated(hidden=(16,), epochs=100).fit(own)
    assert fitted.extras["candidate"] == "label noise"
    assert 0.1 < fitted.extras["label_noise"].mean() < 0.8
    score = fitted.extras["suspicion"]
    pairs = score[flipped][:, None] > score[~flipped][None]
    assert pairs.double().mean() > 0.9  # the area under the ROC curve


@pytest.mark.parametrize(("wrong", "differ"), [((8, 0), False), ((150, 30), True), ((90, 30), False)])
def test_labels_are_suspected_on_strong_evidence_only(wrong, differ):
    """Of 700 training and 300 validation samples so many are met wrongly; none among 300 is no certainty."""
    labels = torch.zeros(1000, dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0]]).repeat(1000, 1)
    for start, count in zip((0, 700), wrong, strict=True):
        logits[start : start + count] = torch.tensor([0.0, 1.0])
    rows = torch.arange(1000)
    fold = Fold(rows[:0], rows, rows[:0])
    network = SimpleNamespace(predict=lambda inputs: logits)
    fit = CrossFit((network,), (fold,), Part(torch.zeros(1000, 1), labels))
    assert labels_differ(fit, 700) == differ


def test_without_a_validation_part_everything_is_pooled():
    own, _ = task()
    fitted = SelfCalibrated(hidden=(8,), epochs=20).fit(Task(own.train, None, 5, 0))
    assert fitted.extras["candidate"] == "pooled"
    assert len(fitted.networks) == 10


def test_the_scale_of_sample_weights_does_not_matter_beside_a_part_without():
    own, _ = task(train=60, val=40)
    weights = torch.linspace(0.5, 1.5, 60)
    probs = [
        SelfCalibrated(hidden=(4,), epochs=10)
        .fit(Task(Part(own.train.inputs, own.train.labels, scale * weights), own.val, 5, 0))
        .probs(own.val.inputs)
        for scale in (1.0, 1000.0)
    ]
    assert torch.allclose(*probs, atol=1e-4)


def test_doubtful_rows_that_hardly_count_raise_no_suspicion():
    labels = torch.zeros(1000, dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0]]).repeat(1000, 1)
    logits[:200] = torch.tensor([0.0, 1.0])
    rows, weights = torch.arange(1000), torch.ones(1000)
    network = SimpleNamespace(predict=lambda inputs: logits)
    for weight, differ in ((1.0, True), (0.01, False)):
        weights[:200] = weight
        fit = CrossFit((network,), (Fold(rows[:0], rows, rows[:0]),), Part(torch.zeros(1000, 1), labels, weights))
        assert labels_differ(fit, 700) == differ


@pytest.mark.parametrize(("val", "choose"), [(30, 0.9), (6, 0.8), (4, 0.5), (12, 1 / 3)])
def test_small_validation_parts_keep_the_pooled_candidate(val, choose):
    own, _ = task(flip=0.5, train=100, val=val)
    fitted = SelfCalibrated(hidden=(4,), epochs=5, choose=choose).fit(own)
    assert torch.isfinite(fitted.probs(own.val.inputs)).all()


def test_without_refitting_one_network_sees_the_training_part_only():
    own, _ = task()
    fitted = SelfCalibrated(hidden=(8,), epochs=20, refit=False).fit(own)
    assert len(fitted.networks) == 1
    assert fitted.networks[0].problem.train.size == 300


def test_the_temperature_and_biases_that_made_the_labels_are_found():
    generator = np.random.default_rng(0)
    logits, bias = 3 * generator.normal(size=(50_000, 4)), np.array([0.3, -0.3, 0.1, -0.1])
    probs = np.exp(logits / 2 + bias) / np.exp(logits / 2 + bias).sum(1, keepdims=True)
    labels = (probs.cumsum(1) > generator.random((50_000, 1))).argmax(1)
    temperature, found = temperature_and_bias(logits, labels)
    assert temperature == pytest.approx(2, rel=0.03)
    assert found == pytest.approx(bias, abs=0.05)


def test_weights_of_the_samples_count_and_their_scale_does_not():
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(200, 3)), generator.integers(0, 3, 200)
    weights = generator.integers(1, 4, 200)
    expected = temperature_and_bias(logits, labels, weights.astype(float))
    for scale in (1.0, 7.0):
        temperature, bias = temperature_and_bias(logits, labels, scale * weights)
        assert temperature == pytest.approx(expected[0], rel=1e-6)
        assert bias == pytest.approx(expected[1], abs=1e-6)
    assert abs(expected[0] - temperature_and_bias(logits, labels)[0]) > 1e-3


def test_the_temperature_stays_reasonable_where_every_sample_is_right():
    logits = 4 * np.eye(3)[np.arange(30) % 3]
    temperature, bias = temperature_and_bias(logits, np.arange(30) % 3)
    assert 0.3 < temperature < 1
    assert bias == pytest.approx(np.zeros(3), abs=1e-3)


def test_clearly_worse_asks_for_more_than_a_standard_error():
    noise = torch.tensor([1.0, -1.0] * 50)
    assert not clearly_worse(noise, torch.zeros(100))
    assert clearly_worse(noise + 0.2, torch.zeros(100))
    assert not clearly_worse(noise - 0.2, torch.zeros(100))
