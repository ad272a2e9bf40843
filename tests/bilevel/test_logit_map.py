"""Tests of the learned map of logits, and of the direct gradient that trains it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.bilevel import SGD, Adam, Direct, LogitMap, Unrolled, solve
from calibrant.bilevel.variables.logits import BehindMap, describe
from tests.bilevel.loop_cases import SAMPLES, Spy, mlp, problem


def mapped(head=True):
    """A problem whose outer loss sees mapped logits; without a head, another layer follows the linear one."""
    model = mlp() if head else nn.Sequential(mlp(), nn.Softplus())
    outer = LogitMap(4, samples=SAMPLES, seed=1).double()
    return problem(model, outer=outer, outer_loss=BehindMap(), batch_size=8)


def moved(seed=0, hidden=5):
    """A map with parameters as after training."""
    torch.manual_seed(seed)
    found = LogitMap(hidden, seed=seed).double()
    with torch.no_grad():
        for values in found.parameters():
            values.add_(torch.randn_like(values))
    return found


@pytest.mark.parametrize("classes", [2, 3, 40])
def test_a_map_keeps_the_order_of_the_classes(classes):
    logits = 4 * torch.randn(50, classes, dtype=torch.float64)
    mapped = moved()(logits)
    assert torch.equal(mapped.argsort(1), logits.argsort(1))
    assert not torch.allclose(mapped, logits)


def test_a_new_map_changes_nothing():
    logits = torch.randn(5, 7)
    assert torch.equal(LogitMap()(logits), logits)


def test_descriptions_ignore_a_common_shift_and_the_order_of_classes():
    logits = 3 * torch.randn(20, 6, dtype=torch.float64)
    torch.testing.assert_close(describe(logits + 5), describe(logits))
    torch.testing.assert_close(describe(logits[:, torch.randperm(6)]), describe(logits))
    assert describe(torch.zeros(2, 2)).isfinite().all()


def test_factors_are_bounded():
    found = LogitMap(largest=2.0)
    with torch.no_grad():
        found.constant.fill_(50.0)
    torch.testing.assert_close(found(torch.ones(1, 3)), torch.full((1, 3), 2.0))


def test_the_prior_is_normal_and_spares_the_constant():
    found = moved()
    found.held_out_samples = 10
    free = [p for name, p in found.named_parameters() if name != "constant"]
    torch.testing.assert_close(found.prior(), sum(p.square().sum() for p in free) / 20)


@pytest.mark.parametrize("settings", [{"hidden": -1}, {"largest": 1.0}, {"samples": 0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match=f"got .*{next(iter(settings))}="):
        LogitMap(**settings)


@pytest.mark.parametrize("head", [True, False])
def test_the_direct_gradient_is_the_whole_one(head):
    """Training does not depend on the map, so differentiating through it adds nothing."""
    found = []
    for hypergradient in (Direct(3), Unrolled(3)):
        gradients = Spy()
        settings = {"inner_optimizer": SGD(0.1, momentum=0.9), "outer_optimizer": Adam(0.05), "outer_steps": 4}
        if isinstance(hypergradient, Unrolled):
            with pytest.warns(UserWarning, match="does not depend on the outer variables"):
                solution = solve(mapped(head), hypergradient=hypergradient, callbacks=[gradients], **settings)
        else:
            solution = solve(mapped(head), hypergradient=hypergradient, callbacks=[gradients], **settings)
        found.append((torch.stack(gradients.gradient), solution.phi, solution.params))
    for direct, whole in zip(*found, strict=True):
        torch.testing.assert_close(direct, whole, rtol=1e-9, atol=1e-12)
    assert found[0][0].abs().max() > 0
