"""Tests of `python -m studies bench networks` on small data: measurements, time limits and the report."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.methods import Task
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.confidence import WithConfidenceMap
from calibrant.methods.core.samples import Samples
from calibrant.methods.fit.defaults import default_method
from calibrant.report import read_results
from studies.networks import page, plain, study, tasks
from studies.networks.study import run


@pytest.fixture
def brief(monkeypatch):
    """Few samples, epochs and steps."""
    monkeypatch.setattr(tasks, "COUNTS", dict.fromkeys(tasks.COUNTS, (90, 60, 50)))
    monkeypatch.setattr(study, "EPOCHS", {"scratch": 2, "tuned": 2})
    monkeypatch.setattr(study, "REPEATS", {"scratch": 1, "tuned": 2})
    monkeypatch.setattr(study, "SOURCE_STEPS", 4)


def test_the_command_goes_on_and_makes_the_report_again(brief, tmp_path, capsys):
    report = run(seeds=2, only=["table"], out=tmp_path)
    shown = capsys.readouterr().out
    assert report.exists()
    for start in page.LABELS.values():
        assert f"table, {start}: upper end of the NLL difference at most 1%" in " ".join(shown.split())
    results = read_results(tmp_path / "results.json")
    assert [(r["start"], r["seed"]) for r in results.records] == [
        ("scratch", 0),
        ("scratch", 1),
        ("tuned", 0),
        ("tuned", 1),
    ]
    for record in results.records:
        assert all(1 <= count <= 3 for count in record["networks"])
        assert len(record["fit"]["nll_of_repeats"]) == {"scratch": 1, "tuned": 2}[record["start"]]
        assert record["fit"]["nll"] == pytest.approx(np.mean(record["fit"]["nll_of_repeats"]), rel=1e-5)
        assert record["plain"]["seconds"] == pytest.approx(record["fit"]["seconds"], rel=0.5, abs=0.5)
    begin = time.perf_counter()
    run(seeds=2, only=["table"], out=tmp_path)
    assert "Found 4 of 4 runs in" in capsys.readouterr().err
    assert time.perf_counter() - begin < 60
    again = run(out=tmp_path / "again", source=tmp_path / "results.json")
    assert again.exists()
    with pytest.raises(ValueError, match="must be one of digits, languages, reviews, table; got faces"):
        run(only=["faces"], out=tmp_path)


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_tuned_network_knows_the_source_with_a_new_head(brief, name):
    task = tasks.TASKS[name]
    model, splits = study.prepared(task, "tuned", 0)
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
    model, splits = study.prepared(task, "large", 0)
    method = default_method(model, Task(Samples(*splits.train), Samples(*splits.val), 3))
    assert isinstance(method, WithConfidenceMap)
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
    best, temperature = plain.train_plain(net, train, val, seconds=0.4)
    assert 0.3 < time.process_time() - begin < 3
    assert torch.equal(net.weight, before)
    logits, labels = plain.predict(best, val)
    probs = temperature.predict_proba(logits)
    assert np.log(probs[np.arange(100), labels]).mean() > -0.65
    assert plain._share(0.0) < plain._share(0.2) == pytest.approx(1.0)
    assert plain._share(1.0) == pytest.approx(0.0)


def test_the_difference_is_paired_and_relative():
    records = [
        {"task": "table", "start": "scratch", "seed": k, "networks": [1], "fit": {"nll": a}, "plain": {"nll": b}}
        for k, (a, b) in enumerate([(0.9, 1.0), (1.9, 2.0), (2.9, 3.0)])
    ]
    (case,) = page.cases_of(records)
    assert case.difference.value == pytest.approx(-0.05)
    assert case.difference.high == pytest.approx(-0.05)
    (verdict,) = page.verdicts([case])
    assert verdict.holds
