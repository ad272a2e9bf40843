"""Tests of the study of users' networks: its data, its rival and the table."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.methods import Calibrated, Task
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.core.samples import Samples
from calibrant.methods.fit.defaults import default_method
from studies import network_tasks as tasks
from studies import networks


@pytest.fixture
def brief(monkeypatch):
    """Few samples and steps."""
    monkeypatch.setattr(tasks, "COUNTS", dict.fromkeys(tasks.COUNTS, (90, 60, 50)))
    monkeypatch.setattr(networks, "SOURCE_STEPS", 4)


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_tuned_network_knows_the_source_with_a_new_head(brief, name):
    task = tasks.TASKS[name]
    model, splits = networks.prepared(task, "tuned", 0)
    assert model.get_submodule(task.head).out_features == tasks.classes_of(splits)
    fresh = task.build(tasks.classes_of(splits), 0).state_dict()
    changed = [k for k, v in model.state_dict().items() if not k.startswith(task.head) and not torch.equal(v, fresh[k])]
    assert changed
    again = task.draw(0, "tuned")
    assert all(torch.equal(a.labels, b.labels) for a, b in zip(splits, again, strict=True))


@pytest.mark.parametrize(("start", "copies"), [("scratch", (1, 1, 4)), ("large", (10, 7, 4))])
def test_digits_are_in_one_part_only(start, copies):
    """A noisy copy of a training digit in the test part would make every score too good."""
    splits = tasks.TASKS["digits"].draw(0, start)
    counts = [len(pair.labels) for pair in splits]
    assert counts == [n * many for n, many in zip((800, 300, 1797 - 1100), copies, strict=True)]


def test_the_large_version_trains_one_network():
    """Its training part is too large for the default for small data, which trains several."""
    task = tasks.TASKS["table"]
    model, splits = networks.prepared(task, "large", 0)
    method = default_method(model, Task(Samples(*splits.train), Samples(*splits.val), 3))
    assert isinstance(method, Calibrated)
    assert isinstance(method.base, AveragedNetwork)
    assert all(len(pair.labels) == count for pair, count in zip(splits, tasks.COUNTS["large"], strict=True))


def test_plain_training_keeps_its_time_and_its_best_state():
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    y = (x[:, 0] + 0.5 * torch.randn(200) > 0).long()
    train, val = [(x[:100], y[:100])], [(x[100:], y[100:])]
    net = nn.Linear(4, 2)
    before = net.weight.clone()
    begin = time.process_time()
    best, temperature = networks.train_plain(net, train, val, seconds=0.4)
    assert 0.3 < time.process_time() - begin < 3
    assert torch.equal(net.weight, before)
    logits, labels = networks.predict(best, val)
    probs = temperature.predict_proba(logits)
    assert np.log(probs[np.arange(100), labels]).mean() > -0.65
    assert networks.share_of_peak(0.0) < networks.share_of_peak(0.2) == pytest.approx(1.0)
    assert networks.share_of_peak(1.0) == pytest.approx(0.0)


def test_the_difference_is_paired_and_relative():
    records = [
        {"task": "table", "start": "scratch", "seed": k, "fit": {"nll": a}, "plain": {"nll": b}}
        for k, (a, b) in enumerate([(0.9, 1.0), (1.9, 2.0), (2.9, 3.0)])
    ]
    text = networks.table(records)
    assert "-5.0% (-5.0% to -5.0%)" in text
    assert "significantly lower for: table (from scratch)" in text
    assert "significantly higher for: none" in text
