"""Tests of averages over a run: of the weights, and of predictions that a criterion sees together."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    OUTER_LOSSES,
    SGD,
    Adam,
    Bilevel,
    Callback,
    Checkpoint,
    ConstantGamma,
    Direct,
    EarlyStopping,
    Feedback,
    FocalWithGamma,
    History,
    LogitMap,
    MovingAverage,
    Plain,
    Population,
    SampleWeights,
    Unrolled,
    confidence_gap_loss,
    pooled,
    solve,
)
from calibrant.bilevel.variables.logits import BehindMap
from calibrant.losses import sece

SAMPLES = 24


def problem(seed=0, **settings):
    torch.manual_seed(seed)
    x, y = torch.randn(2 * SAMPLES, 2, dtype=torch.float64), torch.randint(0, 3, (2 * SAMPLES,))
    model = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    train, val = (x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:])
    settings = {"batch_size": 8, "val_batch_size": 7, "seed": seed, **settings}
    return Bilevel(model, settings.pop("outer", None), train=train, val=val, **settings)


PLAIN = {"hypergradient": Plain(2), "inner_optimizer": SGD(0.2, momentum=0.9)}


class Steps(Callback):
    """Keeps the state and φ of every step."""

    def __init__(self):
        self.kept = []

    def on_step(self, run):
        self.kept.append(run.state.tensors() | {"phi": run.phi})


@pytest.mark.parametrize("outer", [True, False])
def test_the_average_is_exponential_and_becomes_the_result(outer):
    steps, average = Steps(), MovingAverage(0.2, every=2, start=0.3, outer=outer)
    one = problem(outer=LogitMap(4).double(), outer_loss=BehindMap())
    how = {"hypergradient": Direct(2), "inner_optimizer": SGD(0.2, momentum=0.9), "outer_optimizer": Adam(0.05)}
    solution = solve(one, outer_steps=10, callbacks=[steps, average], **how)
    found = {"params": solution.params, "phi": solution.phi} | {f"buffer.{k}": b for k, b in solution.buffers.items()}
    for part in ("params", "buffer.1.running_var", "phi"):
        first, *others = (steps.kept[k - 1][part] for k in (4, 6, 8, 10))
        expected = first
        for look, value in enumerate(others, 2):
            kept = min(0.2, look / (look + 9))
            expected = kept * expected + (1 - kept) * value
        if part == "phi" and not outer:
            expected = steps.kept[-1]["phi"]
        torch.testing.assert_close(found[part], expected, rtol=1e-12, atol=1e-12)
    name = "buffer.1.num_batches_tracked"
    assert found[name] == steps.kept[-1][name]


def test_an_average_that_is_only_kept_leaves_the_result_alone():
    average = MovingAverage(use=False)
    with_it = solve(problem(), outer_steps=6, callbacks=[average], **PLAIN)
    without = solve(problem(), outer_steps=6, **PLAIN)
    assert torch.equal(with_it.params, without.params)
    assert not torch.equal(average.average.params, without.params)


def test_an_average_survives_a_checkpoint(tmp_path):
    def callbacks():
        return [MovingAverage(start=0), Checkpoint(path, every=5)]

    path = tmp_path / "run.safetensors"
    whole = solve(problem(), outer_steps=8, callbacks=[MovingAverage(start=0)], **PLAIN)
    solve(problem(), outer_steps=5, callbacks=callbacks(), **PLAIN)
    again = solve(problem(), outer_steps=8, callbacks=callbacks(), resume=path, **PLAIN)
    assert torch.equal(whole.params, again.params)


@pytest.mark.parametrize("settings", [{"decay": 1.0}, {"decay": 0.0}, {"every": 0}, {"start": 1.0}])
def test_settings_of_the_average_are_checked(settings):
    with pytest.raises(ValueError, match=r"must be between|must be at least"):
        MovingAverage(**settings)


@pytest.mark.parametrize(("members", "loader"), [(None, False), (None, True), (2, False)])
def test_early_stopping_judges_pooled_predictions(members, loader):
    """SECE of all held-out samples at once, not the mean over batches of seven."""
    outer_loss = OUTER_LOSSES["sece"](strength=None, bandwidth=0.1)
    settings = {"outer_loss": outer_loss, "val_batch_size": None if loader else 7}
    single = [problem(seed, **settings) for seed in range(members or 1)]
    whole = [(one.val.whole.inputs, one.val.whole.targets) for one in single]
    if loader:
        single = [single[0].replicate(val=DataLoader(TensorDataset(*whole[0]), batch_size=7))]
    stopping = EarlyStopping(patience=None, restore_best=False)
    solution = solve(Population(single) if members else single[0], outer_steps=1, callbacks=[stopping], **PLAIN)
    for k, (inputs, labels) in enumerate(whole):
        own = solution.member(k) if members else solution
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


def test_feedback_raises_gamma_while_confidence_is_above_accuracy():
    outer = {"outer": ConstantGamma(1.0), "inner_loss": FocalWithGamma(), "outer_loss": confidence_gap_loss()}
    one, history = problem(val_batch_size=None, **outer), History(phi_every=1)
    optimizers = {"inner_optimizer": Adam(0.05), "outer_optimizer": SGD(0.5)}
    solve(one, hypergradient=Feedback(3), outer_steps=12, callbacks=[history], **optimizers)
    gaps, gammas = history["outer_loss"], history["phi"].squeeze(1)
    torch.testing.assert_close(gammas[1:], (gammas[:-1] + 0.5 * gaps).clamp(0, 5), rtol=1e-9, atol=1e-12)
    assert gaps.any()


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
