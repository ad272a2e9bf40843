"""Tests of folds: every row is held out once, by networks that saw neither its copies nor its group."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit

from calibrant.data.streams.streams import TensorStream
from calibrant.methods import CrossFitted, Samples, SelfCalibrated, Standard, Task
from calibrant.methods.core.task import even
from calibrant.methods.crossfit.folds import deal, row_groups
from calibrant.methods.self_calibrated import LabelNoisy, Pooled


@pytest.mark.parametrize(("rows", "number", "train"), [(100, 5, 70), (103, 5, 71), (47, 3, 30), (20, 2, 10), (9, 5, 7)])
@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_row_is_held_out_once_a_repeat(rows, number, train, repeats, grouped):
    labels = torch.arange(rows) % 4
    groups = np.arange(rows) // 2 if grouped else None
    dealt = deal(labels, number, seed=0, repeats=repeats, choose=1 / 3, choose_from=slice(train, None), groups=groups)
    assert len(dealt) == min(number, rows) * repeats
    for repeat in range(repeats):
        own = dealt[len(dealt) // repeats * repeat :][: len(dealt) // repeats]
        held = torch.cat([f.held for f in own])
        assert torch.equal(held.sort().values, torch.arange(rows))
    judged, chosen = (torch.cat([getattr(f, use) for f in dealt]).unique() for use in ("judge", "choose"))
    assert not set(judged.tolist()) & set(chosen.tolist())
    assert (chosen >= train).all()
    assert len(chosen) or rows < 10
    for fold in dealt:
        assert torch.equal(torch.cat([fold.train, fold.held]).sort().values, torch.arange(rows))
    sizes = [len(f.held) for f in dealt]
    assert max(sizes) - min(sizes) <= (6 if grouped else 3)


def test_only_trusted_validation_rows_are_held_out():
    trusted = slice(70, None)
    dealt = deal(torch.arange(100) % 3, 5, seed=0, held_from=trusted, choose=1 / 3, choose_from=trusted)
    for fold in dealt:
        assert (fold.held >= 70).all()
        assert len(fold.train) == 94


def copied(kind: str, *, val: bool = False) -> Task:
    """A task whose rows come in fours: exact copies with different labels, or different rows of one group."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 3, generator=generator).repeat(4, 1)
    if kind == "groups":
        inputs = torch.randn(120, 3, generator=generator)
    labels = torch.randint(3, (120,), generator=generator)
    labels[:3] = torch.arange(3)
    groups = torch.arange(120) % 30 if kind == "groups" else None
    whole = Samples(inputs, labels, groups=groups)
    # With a validation part, copies are on both sides of it.
    return Task(whole[:75], whole[75:], 3) if val else Task(whole, None, 3)


@pytest.mark.parametrize("kind", ["copies", "groups"])
@pytest.mark.parametrize("val", [False, True])
@pytest.mark.parametrize("candidate", [Pooled, LabelNoisy])
def test_networks_never_judge_a_copy_or_group_they_trained_on(kind, val, candidate):
    if candidate is LabelNoisy and not val:
        pytest.skip("needs a validation part")
    tasks = candidate(SelfCalibrated(folds=4)).parts(copied(kind, val=val))
    together = torch.arange(120) % 30
    for task in even(tasks):
        held = together[task.fold.held]
        assert not torch.isin(together[task.fold.train], held).any()
        stream = task.streams(None)["train"].whole  # what the engine sees, including padding rows
        assert not torch.isin(together[stream.index], held).any()
        assert torch.equal(stream.inputs, task.pooled.inputs[stream.index])


def test_held_out_logits_come_from_networks_without_the_row():
    """The logit of each network shows which groups it was trained on."""
    own = copied("copies")
    together = torch.arange(120) % 30
    seen = []

    class Remembers:
        def __init__(self, fold):
            self.params = torch.zeros(1)
            self.rows = own.train.inputs[fold.train]

        def logits(self, inputs):
            known = (inputs[:, None] == self.rows[None]).all(-1).any(1)
            seen.append(known)
            return known[:, None].double().repeat(1, 3)

    from calibrant.methods.crossfit.crossfit import CrossFit

    dealt = deal(own.train.labels, 5, seed=0, repeats=2, groups=row_groups(own.train))
    fit = CrossFit(tuple(map(Remembers, dealt)), tuple(dealt), own.train)
    assert torch.equal(fit.held_out_logits, torch.zeros(120, 3, dtype=torch.float64))
    assert len(torch.cat(seen)) == 240
    assert len(together) == 120


def test_rows_that_fill_up_a_fold_change_no_loss():
    part = Samples(torch.randn(7, 2), torch.arange(7) % 2)
    filled = part.filled(10)
    assert len(filled) == 10
    assert filled.sample_weight.tolist() == [1.0] * 7 + [0.0] * 3
    losses = torch.rand(7)
    whole = TensorStream(filled.inputs, filled.labels, sample_weight=filled.sample_weight).whole
    repeated = losses[torch.arange(10) % 7]
    assert whole.weighted(repeated).mean().item() == pytest.approx(losses.mean().item(), rel=1e-6)


@pytest.mark.parametrize("method", [SelfCalibrated(hidden=(4,), epochs=20), CrossFitted(Standard((4,), epochs=20))])
def test_folds_of_different_sizes_train_as_one_population(method):
    own = copied("groups")
    groups = torch.cat([torch.zeros(60, dtype=torch.long), torch.arange(1, 61)])  # half of the rows are one group
    fitted = method.fit(Task(Samples(own.train.inputs, own.train.labels, groups=groups), None, 3))
    assert torch.isfinite(fitted.probs(own.train.inputs)).all()


@pytest.mark.parametrize("cv", [KFold(4), GroupKFold(3), TimeSeriesSplit(3), ShuffleSplit(4, random_state=0)])
def test_folds_can_be_named(cv):
    own = copied("groups")
    splits = tuple(cv.split(own.train.inputs, own.train.labels, own.train.groups))
    task = Task(own.train, None, 3, splits=splits)
    method = SelfCalibrated(hidden=(4,), epochs=10)
    for found, (train, held) in zip(Pooled(method).parts(task), splits, strict=True):
        assert found.fold.train.tolist() == list(train)
        assert found.fold.held.tolist() == list(held)
    fitted = method.fit(task)
    assert len(fitted.networks) % len(splits) == 0
    assert torch.isfinite(fitted.probs(own.train.inputs)).all()


def test_one_group_cannot_be_dealt():
    own = copied("groups")
    part = Samples(own.train.inputs, own.train.labels, groups=torch.zeros(120, dtype=torch.long))
    with pytest.raises(ValueError, match="groups must name at least two"):
        SelfCalibrated(hidden=(4,), epochs=5).fit(Task(part, None, 3))


def test_all_tensors_of_a_part_move_to_a_device():
    """The part without groups numbers its rows on its own device, so those of the other must be there as well."""
    inputs, labels = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    grouped = Samples(inputs, labels, torch.ones(4), groups=torch.tensor([0, 0, 1, 1])).to("meta")
    both = grouped + Samples(inputs, labels).to("meta")
    for part in (grouped, both):
        assert {t.device.type for t in (part.inputs, part.labels, part.sample_weight, part.groups)} == {"meta"}
