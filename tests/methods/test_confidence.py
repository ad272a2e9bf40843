"""Tests of the recommended method for images: a network with a learned confidence map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import calibrant
from calibrant.data.streams.streams import TensorStream
from calibrant.data.vision import Distort, Normalise
from calibrant.methods import Samples, Task, confidence
from calibrant.methods.confidence import LearnedConfidence, Mapped, fit_map
from calibrant.methods.image_networks import NetworkTraining, Recipe
from calibrant.models import small_cnn

RECIPE = Recipe(epochs=12, batch_size=32, learning_rate=0.05, average=0.9)
CLASSES = 3


def images(seed: int, count: int = 96) -> Samples:
    """Noisy pictures of three classes, a bright band in one of three places; a tenth of the labels is wrong."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    pixels = torch.randint(0, 150, (count, 1, 8, 8), generator=generator)
    for sample, label in enumerate(labels):
        pixels[sample, :, 2 * label : 2 * label + 2] += 60
    wrong = torch.rand(count, generator=generator) < 0.1
    return Samples(
        pixels.to(torch.uint8), torch.where(wrong, (labels + 1) % CLASSES, labels), prepare=Normalise((0.4,), (0.2,))
    )


def make(seed: int) -> torch.nn.Module:
    return small_cnn(CLASSES, channels=1, seed=seed)


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(images(0, 128), images(1, 200), CLASSES, 0, make, meta=images(2, 200))


@pytest.fixture(autouse=True)
def _the_map_of_the_run(monkeypatch):
    """The tests have few images; keep the map of the training run nevertheless."""
    monkeypatch.setattr(confidence, "FEW", 0)


@pytest.fixture(scope="module")
def fitted(task):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confidence, "FEW", 0)
        return LearnedConfidence(RECIPE).fit(task)


def logits(model, part):
    return torch.cat([model.logits(x) for x, _ in part.pieces()])


def nll(scores, labels):
    return float(torch.nn.functional.cross_entropy(scores, labels))


def test_the_network_is_that_of_plain_training(task, fitted):
    plain = NetworkTraining(RECIPE).fit(task)
    assert isinstance(fitted, Mapped)
    torch.testing.assert_close(fitted.networks[0].params, plain.networks[0].params)
    part = images(3)
    own, other = logits(fitted, part), logits(plain, part)
    assert torch.equal(own.argmax(1), other.argmax(1))
    assert not torch.allclose(own.softmax(1), other.softmax(1), atol=1e-3)


def test_the_map_lowers_the_held_out_nll(task, fitted):
    plain = NetworkTraining(RECIPE).fit(task)
    unseen = images(4, 400)
    assert nll(logits(fitted, task.meta), task.meta.labels) < nll(logits(plain, task.meta), task.meta.labels)
    assert nll(logits(fitted, unseen), unseen.labels) < nll(logits(plain, unseen), unseen.labels)


def test_few_images_get_a_temperature_that_the_undistorted_ones_teach(task, fitted, monkeypatch):
    monkeypatch.setattr(confidence, "FEW", 201)
    found = LearnedConfidence(RECIPE).fit(task)
    assert found.map.hidden == 0
    assert torch.equal(found.networks[0].params, fitted.networks[0].params)
    expected = fit_map(logits(found.model, task.meta), task.meta.labels, hidden=0)
    assert found.map.factor == pytest.approx(expected.factor)
    monkeypatch.setattr(confidence, "FEW", 200)
    assert LearnedConfidence(RECIPE).fit(task).map.hidden == 16


def test_a_width_of_zero_is_one_temperature(task):
    found = LearnedConfidence(RECIPE, hidden=0).fit(task)
    part = images(3)
    inner = torch.cat([found.model.logits(x) for x, _ in part.pieces()])
    scale = logits(found, part) / inner
    torch.testing.assert_close(scale, scale[:1, :1].expand_as(scale))


def test_distorted_images_are_the_meta_parts_share(task):
    method = LearnedConfidence(RECIPE)
    assert method.held_out_augment(task.meta) == Distort(share=0.05)
    assert replace(method, distorted=0.0).held_out_augment(task.meta) is None
    floats = replace(task.meta, inputs=task.meta.inputs.double())
    assert method.held_out_augment(floats) is None


def test_the_probabilities_are_those_of_the_mapped_logits(fitted):
    part = images(5)
    inputs = part.prepare(part.inputs)
    torch.testing.assert_close(fitted.probs(inputs), fitted.logits(inputs).softmax(1))


def test_calibrant_fit_takes_it_and_keeps_the_map(task, tmp_path):
    """The result has a plain module and a file, also on images that are prepared batch by batch."""
    train, val = (
        TensorStream(part.inputs, part.labels, prepare=part.prepare) for part in (images(0, 96), images(1, 200))
    )
    result = calibrant.fit(make(0), train, val, method=LearnedConfidence(replace(RECIPE, epochs=2)))
    assert result.fitted.map.hidden == 16
    inputs = task.val.prepare(task.val.inputs)
    probs = result.probs(inputs)
    with torch.no_grad():
        torch.testing.assert_close(result.module(inputs).double().softmax(1), probs, atol=1e-5, rtol=0)
    result.save(tmp_path / "net.calibrant")
    again = calibrant.Trained.load(tmp_path / "net.calibrant", make(1))
    torch.testing.assert_close(again.probs(inputs), probs, atol=1e-6, rtol=0)
