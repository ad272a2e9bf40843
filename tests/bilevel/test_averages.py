"""Tests of averages over a run: of the weights, and of predictions that a criterion sees together."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from calibrant.bilevel import (
    OUTER_LOSSES,
    SGD,
    Adam,
    Bilevel,
    Callback,
    Checkpoint,
    ConstantGamma,
    EarlyStopping,
    Feedback,
    FocalWithGamma,
    MovingAverage,
    Plain,
    Population,
    SampleWeights,
    Unrolled,
    confidence_gap_loss,
    one_cycle,
    pooled,
    solve,
)
from calibrant.losses import sece

SAMPLES = 24


def problem(seed=0, **settings):
    torch.manual_seed(seed)
    x, y = torch.randn(2 * SAMPLES, 2, dtype=torch.float64), torch.randint(0, 3, (2 * SAMPLES,))
    model = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    train, val = (x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:])
    settings = {"batch_size": 8, "val_batch_size": 7, "seed": seed, **settings}
    return Bilevel(model, settings.pop("outer", None), train=train, val=val, **settings)


class States(Callback):
    """Keeps the state of every step."""

    def __init__(self):
        self.kept = []

    def on_step(self, run):
        self.kept.append(run.state)


PLAIN = {"hypergradient": Plain(2), "inner_optimizer": SGD(0.2, momentum=0.9)}


def test_the_average_is_exponential_and_becomes_the_result():
    states, average = States(), MovingAverage(0.2, every=2, start=0.3)
    solution = solve(problem(), outer_steps=10, callbacks=[states, average], **PLAIN)
    looks = [states.kept[k - 1] for k in (4, 6, 8, 10)]
    for part in ("params", "1.running_var"):
        values = [s.params if part == "params" else s.buffers[part] for s in looks]
        expected = values[0]
        for look, value in enumerate(values[1:], 2):
            kept = min(0.2, look / (look + 9))
            expected = kept * expected + (1 - kept) * value
        found = solution.params if part == "params" else solution.buffers[part]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert solution.buffers["1.num_batches_tracked"] == states.kept[-1].buffers["1.num_batches_tracked"]


def test_an_average_that_is_only_kept_leaves_the_result_alone():
    average = MovingAverage(use=False)
    with_it = solve(problem(), outer_steps=6, callbacks=[average], **PLAIN)
    without = solve(problem(), outer_steps=6, **PLAIN)
    assert torch.equal(with_it.params, without.params)
    assert not torch.equal(average.average.params, without.params)


def test_an_average_survives_a_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    whole = solve(problem(), outer_steps=8, callbacks=[MovingAverage(start=0.25)], **PLAIN)

    def callbacks():
        return [MovingAverage(start=0.25), Checkpoint(path, every=5)]

    class Stop(Callback):
        def on_step(self, run):
            if run.step == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(problem(), outer_steps=8, callbacks=[*callbacks(), _Last(Stop())], **PLAIN)
    again = solve(problem(), outer_steps=8, callbacks=[*callbacks(), _Last(Callback())], resume=path, **PLAIN)
    assert torch.equal(whole.params, again.params)


class _Last(Callback):
    """Calls another callback after all others."""

    last = True

    def __init__(self, inner):
        self.inner = inner

    def on_step(self, run):
        self.inner.on_step(run)


@pytest.mark.parametrize("settings", [{"decay": 1.0}, {"decay": 0.0}, {"every": 0}, {"start": 1.0}])
def test_settings_of_the_average_are_checked(settings):
    with pytest.raises(ValueError, match=r"must be between|must be at least"):
        MovingAverage(**settings)


@pytest.mark.parametrize("members", [None, 2])
def test_early_stopping_judges_pooled_predictions(members):
    """SECE of all held-out samples at once, not the mean over batches of seven."""
    outer_loss = OUTER_LOSSES["sece"](strength=None, bandwidth=0.1)
    single = [problem(seed, outer_loss=outer_loss) for seed in range(members or 1)]
    stopping = EarlyStopping(patience=None, restore_best=False)
    solution = solve(Population(single) if members else single[0], outer_steps=1, callbacks=[stopping], **PLAIN)
    for k, one in enumerate(single):
        own = solution.member(k) if members else solution
        inputs, labels = one.val.whole.inputs, one.val.whole.targets
        expected = sece(own.logits(inputs), labels, bandwidth=0.1)
        torch.testing.assert_close(stopping.best[k], expected.double(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("members", [None, 2])
def test_a_criterion_of_all_logits_and_labels(members):
    seen = []

    def error(logits, labels):
        seen.append(len(labels))
        return (logits.argmax(1) != labels).double().mean()

    single = [problem(seed) for seed in range(members or 1)]
    stopping = EarlyStopping(pooled(error), patience=None, restore_best=False)
    solution = solve(Population(single) if members else single[0], outer_steps=1, callbacks=[stopping], **PLAIN)
    assert set(seen) == {SAMPLES}
    for k, one in enumerate(single):
        own = solution.member(k) if members else solution
        wrong = own.classes(one.val.whole.inputs) != one.val.whole.targets
        assert stopping.best[k] == wrong.double().mean()


def test_one_cycle_is_torchs():
    steps = 40
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps, pct_start=0.2)
    ours = one_cycle(0.3, steps, warmup=0.2)
    for step in range(1, steps + 1):
        assert math.isclose(ours(step), optimizer.param_groups[0]["lr"], rel_tol=1e-9)
        optimizer.step()
        if step < steps:
            scheduler.step()
    assert ours(steps + 5) == ours(steps)


def test_feedback_raises_gamma_while_confidence_is_above_accuracy():
    outer = {"outer": ConstantGamma(1.0), "inner_loss": FocalWithGamma(), "outer_loss": confidence_gap_loss()}
    one = problem(val_batch_size=None, **outer)
    gaps, gammas = [], [1.0]

    class Watch(Callback):
        def on_step(self, run):
            gaps.append(float(run.outer_loss))
            gammas.append(float(run.phi))

    solve(
        one,
        hypergradient=Feedback(3),
        inner_optimizer=Adam(0.05),
        outer_optimizer=SGD(0.5),
        outer_steps=12,
        callbacks=[Watch()],
    )
    for before, after, gap in zip(gammas, gammas[1:], gaps, strict=False):
        assert math.isclose(after, min(max(before + 0.5 * gap, 0.0), 5.0), rel_tol=1e-9, abs_tol=1e-12)
    assert any(gap != 0 for gap in gaps)


def test_decay_spares_biases_and_norms():
    one = problem(outer=SampleWeights(SAMPLES))
    spared = SGD(0.1, weight_decay=0.5, decay_on="weights")
    bound = spared.bound(one.view.weight_mask, one.view.spread)
    values = one.view.unflatten(bound.update(one.start, (), torch.zeros_like(one.start), 1)[0])
    for name, before in one.view.unflatten(one.start).items():
        factor = 0.95 if before.dim() > 1 else 1.0
        torch.testing.assert_close(values[name], factor * before)
    with pytest.raises(ValueError, match="need the network"):
        spared.update(one.start, (), torch.zeros_like(one.start), 1)
    solve(one, hypergradient=Unrolled(2), inner_optimizer=spared, outer_optimizer=SGD(1.0), outer_steps=1)
