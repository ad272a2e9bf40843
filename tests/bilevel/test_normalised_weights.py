"""Tests of hypergradients through layers whose weights are computed: weight and spectral normalisation."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from calibrant.bilevel import CG, SGD, Bilevel, Forward, Implicit, LabelSmoothing, OneStep, Plain, Unrolled, solve
from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.gradients.head import HeadLosses
from tests.bilevel.differences import central_differences

CLASSES, STEPS = 3, 4
INNER = SGD(0.3, momentum=0.5)


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, CLASSES))


def weight_norm(dim=0):
    body = parametrizations.weight_norm(nn.Linear(5, 6), dim=dim)
    return nn.Sequential(body, nn.Tanh(), parametrizations.weight_norm(nn.Linear(6, CLASSES), dim=dim))


def spectral_norm():
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, CLASSES))


WEIGHT_NORMS = {
    "rows": weight_norm,
    "columns": lambda: weight_norm(1),
    "whole": lambda: weight_norm(None),
    "old": old_weight_norm,
}


def posed(make, batch_size=8):
    torch.manual_seed(2)
    x, y = torch.randn(44, 5, dtype=torch.float64), torch.randint(0, CLASSES, (44,))
    data = {"train": (x[:24], y[:24]), "val": (x[24:], y[24:])}
    variables = LabelSmoothing(CLASSES, per="class", initial=0.1)
    return Bilevel(make().double(), variables, batch_size=batch_size, **data)


def found(problem, hypergradient, inner=INNER, **settings):
    settings |= {"inner_optimizer": inner, "outer_optimizer": SGD(1.0), "outer_steps": 1}
    return problem.initial_phi() - solve(problem, hypergradient=hypergradient, **settings).phi


def outer_loss(problem, steps, phi):
    """F after ordinary training with φ, which uses torch's own kernels."""
    trained = solve(problem.replicate(outer=phi), hypergradient=Plain(steps), inner_optimizer=INNER, outer_steps=1)
    return problem.outer(trained.params, trained.buffers, phi, problem.val_batch(0))[0]


def slopes(problem, steps):
    """The slopes along the axes: there are as many directions as variables."""
    along, values = central_differences(lambda phi: outer_loss(problem, steps, phi), problem.initial_phi())
    assert torch.equal(along, torch.eye(CLASSES, dtype=torch.float64))
    return values


@pytest.mark.parametrize("kind", WEIGHT_NORMS)
def test_weight_normalisation_has_its_second_derivative(kind):
    """The fused kernel treats the norms as constants in its second derivative, so it is replaced."""
    problem = posed(WEIGHT_NORMS[kind])
    wanted = slopes(problem, STEPS)
    for hypergradient in (Unrolled(STEPS), Unrolled(STEPS, memory="checkpoints"), Forward(STEPS)):
        torch.testing.assert_close(found(problem, hypergradient), wanted, rtol=1e-7, atol=0)
    torch.testing.assert_close(found(problem, Unrolled(STEPS), compile="trace"), wanted, rtol=1e-7, atol=0)


def test_the_hessian_of_a_weight_normalised_head():
    """``Implicit(scope="head")`` against a dense solution."""
    problem, damping = posed(weight_norm, batch_size=None), 0.5
    settings = {"scope": "head", "damping": damping, "solve": CG(200, tolerance=1e-12), "first": "inner"}
    given = found(problem, Implicit(1, **settings), SGD(0.0))
    w, phi, params = problem.start[problem.head_slice], problem.initial_phi(), problem.start
    batch, judge = problem.train_batch(0), problem.val_batch(0)
    head, state = HeadLosses(problem), State(params, (), problem.initial_buffers(), 0)
    of_features = head.inner(state, head.see(state, batch).features).fn

    def slope(w, phi):
        """∇_w L by central differences, so that no second derivative of torch is needed."""
        moves = 1e-4 * torch.eye(len(w), dtype=w.dtype)
        values = [[of_features(w + s * m, {}, phi, batch)[0] for s in (1, -1)] for m in moves]
        return torch.stack([(a - b) / 2e-4 for a, b in values])

    def column(move_w, move_phi):
        return (slope(w + move_w, phi + move_phi) - slope(w - move_w, phi - move_phi)) / 2e-3

    hessian = torch.stack([column(m, 0.0) for m in 1e-3 * torch.eye(len(w), dtype=w.dtype)], 1)
    cross = torch.stack([column(0.0, m) for m in 1e-3 * torch.eye(len(phi), dtype=w.dtype)], 1)
    outer = head.outer(state, w, phi, judge).params
    wanted = -cross.T @ torch.linalg.solve(hessian + damping * torch.eye(len(w), dtype=w.dtype), outer)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore:The training pass updates")
def test_spectral_normalisation_can_be_differentiated():
    """Its power iteration overwrites buffers that the derivative needs."""
    problem = posed(spectral_norm)
    torch.testing.assert_close(found(problem, OneStep()), slopes(problem, 1), rtol=1e-6, atol=0)
    kinds = (Unrolled(STEPS), Unrolled(STEPS, memory="checkpoints"), Forward(STEPS))
    first, *others = (found(problem, kind) for kind in kinds)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-8, atol=0)
