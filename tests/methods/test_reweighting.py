"""Tests of sample weights learned from clean held-out labels, with many wrong training labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from calibrant.bilevel import Hypergradient
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task
from calibrant.methods.image_networks import NEXT_STEP, SOLVED_HEAD, NetworkTraining, Recipe, Reweighting

CLASSES, TRAIN, HELD = 4, 480, 160
RECIPE = Recipe(epochs=12, batch_size=40, learning_rate=0.1)


def points(count: int, seed: int) -> Samples:
    """Four clouds in six dimensions."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(CLASSES, 6, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(count) % CLASSES
    return Samples(centres[labels] + torch.randn(count, 6, generator=generator), labels)


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, CLASSES))


@pytest.fixture(scope="module")
def wrong() -> torch.Tensor:
    return torch.rand(TRAIN, generator=torch.Generator().manual_seed(1)) < 0.4


@pytest.fixture(scope="module")
def task(wrong: torch.Tensor) -> Task:
    """Two fifths of the training labels are moved to the next class; the other parts have clean labels."""
    train = points(TRAIN, 0)
    labels = torch.where(wrong, (train.labels + 1) % CLASSES, train.labels)
    return Task(replace(train, labels=labels), points(HELD, 2), CLASSES, 0, network, meta=points(HELD, 3))


@pytest.mark.parametrize("hypergradient", [SOLVED_HEAD, NEXT_STEP], ids=["solved head", "next step"])
def test_wrong_labels_lose_their_weight_and_predictions_gain(
    task: Task, wrong: torch.Tensor, hypergradient: Hypergradient
) -> None:
    test = points(2000, 4)

    def error(method: NetworkTraining) -> float:
        return float((method.fit(task).logits(test.inputs).argmax(1) != test.labels).double().mean())

    method = Reweighting(RECIPE, hypergradient=hypergradient)
    weights = method.fit(task).extras["sample_weights"]
    assert weights.shape == (TRAIN,)
    assert bool(((weights >= 0) & (weights <= 1)).all())
    assert float(weights[~wrong].mean()) > float(weights[wrong].mean()) + 0.3
    assert error(method) < error(NetworkTraining(RECIPE)) - 0.03


def test_weights_follow_the_meta_part_and_wait_for_their_start(task: Task) -> None:
    short = replace(RECIPE, epochs=2)
    first = Reweighting(short).fit(task).extras["sample_weights"]
    assert torch.equal(first, Reweighting(short).fit(replace(task, val=points(HELD, 7))).extras["sample_weights"])
    assert not torch.equal(first, Reweighting(short).fit(replace(task, meta=points(HELD, 7))).extras["sample_weights"])
    late = Reweighting(short, start=0.95, hypergradient=NEXT_STEP).fit(task).extras["sample_weights"]
    assert float((late != 1).double().mean()) < 0.2  # only samples of the last step have moved
