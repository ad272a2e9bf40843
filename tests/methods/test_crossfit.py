"""Cross-fitting: folds, the last step on held-out logits, and wrong labels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from scipy.special import softmax
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit

from calibrant.data.streams.streams import TensorStream
from calibrant.methods import CrossFitted, Samples, SelfCalibrated, Standard, Task
from calibrant.methods.core.task import even
from calibrant.methods.crossfit import crossfit as held_out
from calibrant.methods.crossfit.crossfit import CrossFit, fit_last_step, flip_rate, labels_differ, wrong_label
from calibrant.methods.crossfit.folds import Fold, deal, grouped
from calibrant.methods.self_calibrated import Candidate
from calibrant.metrics import ece, nll
from calibrant.pool.pool import least_lapse


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
@pytest.mark.parametrize(("val", "label_noise"), [(False, False), (True, False), (True, True)])
def test_networks_never_judge_a_copy_or_group_they_trained_on(kind, val, label_noise):
    tasks = Candidate(SelfCalibrated(folds=4), label_noise).parts(grouped(copied(kind, val=val)))
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

    dealt = deal(own.train.labels, 5, seed=0, repeats=2, groups=grouped(own).train.groups)
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
    for found, (train, held) in zip(Candidate(method).parts(task), splits, strict=True):
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


def drawn_sample(
    n: int, *, temperature: float = 1.0, bias: np.ndarray | float = 0.0, lapse: float = 0.0, seed: int = 0
):
    """Logits, and labels drawn from ``q`` of them."""
    generator = np.random.default_rng(seed)
    logits = 3 * generator.normal(size=(n, 4))
    probs = (1 - lapse) * softmax(logits / temperature + bias, axis=1) + lapse / 4
    return logits, (probs.cumsum(1) > generator.random((n, 1))).argmax(1)


def test_what_made_the_labels_is_found():
    bias = np.array([0.3, -0.3, 0.1, -0.1])
    found = fit_last_step(*drawn_sample(50_000, temperature=2.0, bias=bias, lapse=0.1))
    assert found.temperature == pytest.approx(2, rel=0.05)
    assert found.bias == pytest.approx(bias, abs=0.05)
    assert found.lapse == pytest.approx(0.1, abs=0.01)


def test_no_lapse_is_seen_where_there_is_none():
    assert fit_last_step(*drawn_sample(50_000)).lapse < 0.002


def test_a_ceiling_of_confidence_needs_the_lapse():
    """A temperature can only trade the clear samples' over-confidence for the others' under-confidence."""
    logits, labels = drawn_sample(20_000, lapse=0.2)
    found = fit_last_step(logits, labels)
    without = fit_last_step(logits, labels, lapse_spread=1e-6)
    fresh, outcomes = drawn_sample(20_000, lapse=0.2, seed=1)
    values = []
    for step in (found, without):
        probs = (1 - step.lapse) * softmax(fresh / step.temperature + step.bias, axis=1) + step.lapse / 4
        values.append((ece(probs, outcomes), nll(probs, outcomes)))
    assert values[0][0] < values[1][0] / 2
    assert values[0][1] < values[1][1]


def test_the_gradient_is_that_of_the_cost(monkeypatch):
    seen = {}

    def keep(cost, start, **options):
        seen.update(cost=cost, start=start)
        return original(cost, start, **options)

    original = held_out.minimize
    monkeypatch.setattr(held_out, "minimize", keep)
    fit_last_step(*drawn_sample(200, lapse=0.1), np.linspace(0.5, 2, 200))
    at = seen["start"] + np.linspace(-0.7, 0.9, 6)
    numeric = approx_fprime(at, lambda v: seen["cost"](v)[0], 1e-7)
    assert seen["cost"](at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-3)


def test_weights_of_the_samples_count_and_their_scale_does_not():
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(200, 3)), generator.integers(0, 3, 200)
    weights = generator.integers(1, 4, 200)
    expected = fit_last_step(logits, labels, weights.astype(float))
    scaled = fit_last_step(logits, labels, 7.0 * weights)
    assert scaled.temperature == pytest.approx(expected.temperature, rel=1e-6)
    assert scaled.bias == pytest.approx(expected.bias, abs=1e-6)
    assert scaled.lapse == pytest.approx(expected.lapse, rel=1e-4)
    assert abs(expected.temperature - fit_last_step(logits, labels).temperature) > 1e-3


def test_little_data_is_not_believed_too_much():
    logits = 4 * np.eye(3)[np.arange(30) % 3]
    found = fit_last_step(logits, np.arange(30) % 3)
    assert 0.3 < found.temperature < 1
    assert found.bias == pytest.approx(np.zeros(3), abs=1e-3)
    assert found.lapse == pytest.approx(least_lapse(30, 3))
    # After 30 right answers of 30, the next one is right with probability 31/32.
    assert 1 - found.lapse * 2 / 3 == pytest.approx(31 / 32)


def met(wrong: tuple[int, int], weights: torch.Tensor | None = None) -> CrossFit:
    """A cross-fit on 700 training and 300 validation samples with ``wrong`` wrong predictions in each part."""
    labels = torch.zeros(1000, dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0]]).repeat(1000, 1)
    for start, count in zip((0, 700), wrong, strict=True):
        logits[start : start + count] = torch.tensor([0.0, 1.0])
    rows = torch.arange(1000)
    network = SimpleNamespace(logits=lambda inputs: logits, params=logits)
    return CrossFit((network,), (Fold(rows[:0], rows, rows[:0]),), Samples(torch.zeros(1000, 1), labels, weights))


@pytest.mark.parametrize(("wrong", "differ"), [((8, 0), False), ((150, 30), True), ((90, 30), False)])
def test_labels_are_suspected_on_strong_evidence_only(wrong, differ):
    """Eight wrong predictions among 700, and none among 300, can be chance."""
    assert labels_differ(met(wrong), 700) == differ


@pytest.mark.parametrize(("weight", "differ"), [(1.0, True), (0.01, False)])
def test_doubtful_rows_that_hardly_count_raise_no_suspicion(weight, differ):
    weights = torch.ones(1000)
    weights[:200] = weight
    assert labels_differ(met((200, 0), weights), 700) == differ


def draw(rate: float, n: int = 20_000):
    """Probabilities of four classes, labels drawn from them and flipped at a rate, and which labels were flipped."""
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)).softmax(1)
    truth = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    flipped = torch.rand(n, generator=generator) < rate
    shift = torch.randint(1, 4, (n,), generator=generator)
    labels = torch.where(flipped, (truth + shift) % 4, truth)
    return probs, labels, flipped


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 0.6])
def test_the_rate_of_flipping_is_found(rate):
    probs, labels, _ = draw(rate)
    assert flip_rate(probs, labels) == pytest.approx(rate, abs=0.015)


def test_weights_decide_the_rate_and_their_scale_does_not():
    clean, noisy = draw(0.0), draw(0.4)
    probs, labels = (torch.cat(both) for both in zip(clean[:2], noisy[:2], strict=True))
    weights = (torch.arange(len(labels)) >= len(clean[1])) + 1e-6
    assert flip_rate(probs, labels, weights) == pytest.approx(0.4, abs=0.015)
    assert flip_rate(probs, labels, 7 * weights) == pytest.approx(flip_rate(probs, labels, weights), abs=1e-6)


def test_the_suspicion_is_a_probability_that_can_be_believed():
    probs, labels, flipped = draw(0.3)
    suspicion = wrong_label(probs, labels, 0.3)
    for low in (0.0, 0.2, 0.5, 0.9):
        rows = (suspicion >= low) & (suspicion < low + 0.1)
        assert suspicion[rows].mean().item() == pytest.approx(flipped[rows].double().mean().item(), abs=0.05)


def test_an_impossible_label_is_wrong_a_certain_one_is_not():
    probs = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    labels = torch.tensor([1, 0, 0])
    assert wrong_label(probs, labels, 0.1)[:2].tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert wrong_label(probs, labels, 0.0)[1:].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
