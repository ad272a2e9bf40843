"""Rows that occur many times are trained on once, with the weight of all copies."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant.methods import Samples, SelfCalibrated, Task
from calibrant.methods.crossfit.folds import grouped
from calibrant.methods.tabular import merged_copies as merged_copies

QUICK = SelfCalibrated(hidden=(4,), epochs=20, members=("network", "trees", "linear"))


def drawn(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 3, generator=generator)
    return inputs, (inputs[:, 0] + torch.randn(n, generator=generator) > 0).long()


def test_copies_are_merged_and_keep_their_weight():
    inputs, labels = drawn()
    order = torch.cat([torch.arange(60), torch.arange(30), torch.arange(10)])
    labels = torch.cat([labels, labels[:30], 1 - labels[:10]])  # the last copies have another label
    task, positions = merged_copies(grouped(Task(Samples(inputs[order], labels), None, 2, 0)))
    assert len(task.train) == 70
    weights = task.train.sample_weight.numpy()
    assert weights.mean() == pytest.approx(1)
    assert weights / weights[-1] == pytest.approx(np.repeat([2.0, 1.0], [30, 40]))
    assert task.train.inputs[positions].equal(inputs[order])
    assert task.train.labels[positions].equal(labels)
    assert task.train.groups[:10].equal(task.train.groups[60:])  # equal inputs still share a fold


@pytest.mark.parametrize("change", ["few copies", "chance", "validation", "splits"])
def test_other_tasks_stay_as_they_are(change):
    inputs, labels = drawn()
    rows = torch.arange(60).repeat(1 if change == "few copies" else 3)
    rows = torch.cat([rows, rows[:5]])
    inputs = inputs.sign() if change == "chance" else inputs
    part = Samples(inputs[rows], labels[rows])
    task = grouped(Task(part, part if change == "validation" else None, 2, 0))
    task = replace(task, splits=((np.arange(100), np.arange(100, 185)),)) if change == "splits" else task
    same, positions = merged_copies(task)
    assert same is task
    assert positions is None


def test_repeating_every_row_gives_the_same_classifier():
    inputs, labels = drawn()
    once = QUICK.fit(Task(Samples(inputs, labels, torch.ones(60)), None, 2, 0))
    thrice = QUICK.fit(Task(Samples(inputs.repeat(3, 1), labels.repeat(3)), None, 2, 0))
    assert thrice.probs(inputs).numpy() == pytest.approx(once.probs(inputs).numpy(), abs=1e-4)
    for name in ("held_out", "suspicion"):
        expected = torch.cat([once.extras[name]] * 3)
        assert thrice.extras[name].numpy() == pytest.approx(expected.numpy(), abs=1e-4)
