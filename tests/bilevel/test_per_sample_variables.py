"""Outer variables with one entry per sample move with their samples, however these are batched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import SGD, Adam, Bilevel, LabelSmoothing, SampleWeights, Unrolled, solve
from calibrant.bilevel.callbacks import Callback
from calibrant.data import Indexed
from calibrant.losses.classification import cross_entropy
from tests.bilevel.variable_cases import TRAIN, filled, linear_model, split


class Gradient(Callback):
    """Keeps the hypergradient."""

    def on_step(self, run):
        self.gradient = run.gradient.clone()


def gradient_of(problem, steps, optimizer):
    """dF/dφ of one outer step of `steps` inner steps."""
    kept = Gradient()
    solve(
        problem,
        hypergradient=Unrolled(steps),
        inner_optimizer=optimizer,
        outer_optimizer=SGD(0.1),
        outer_steps=1,
        callbacks=[kept],
    )
    return kept.gradient


PER_SAMPLE = {
    "weights, clipped": lambda: SampleWeights(TRAIN),
    "weights, sigmoid": lambda: SampleWeights(TRAIN, form="sigmoid"),
    "smoothing": lambda: LabelSmoothing(TRAIN),
}


def _hypergradient(outer, order, batches, optimizer):
    """dF/dφ when training sample i is row order[i] of the data set; each step has the same samples."""
    (x, y), val = split()
    rows = torch.argsort(order)  # row r holds sample rows[r]
    outer = filled(outer)
    with torch.no_grad():
        outer.raw.copy_(outer.raw[rows])
    x, y = x.double()[rows], y[rows]
    if batches is None:
        train = (x, y)
    else:
        train = [(x[order[b]], y[order[b]], order[b]) for b in batches]
    problem = Bilevel(linear_model(), outer, train=train, val=(val[0].double(), val[1]))
    return gradient_of(problem, 4, optimizer)[order]


@pytest.mark.parametrize("name", PER_SAMPLE)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    order=st.permutations(range(TRAIN)),
    shuffled=st.permutations(range(TRAIN)),
    size=st.sampled_from([None, 1, 3, 5]),
    adam=st.booleans(),
)
def test_permuting_the_samples_permutes_the_hypergradient(name, order, shuffled, size, adam):
    order = torch.tensor(order)
    batches = None if size is None else torch.tensor(shuffled).split(size)
    optimizer = Adam(0.05) if adam else SGD(0.3, momentum=0.5)
    straight = _hypergradient(PER_SAMPLE[name](), torch.arange(TRAIN), batches, optimizer)
    permuted = _hypergradient(PER_SAMPLE[name](), order, batches, optimizer)
    assert straight.abs().max() > 0
    torch.testing.assert_close(permuted, straight, rtol=1e-9, atol=1e-12)
    if batches is not None:  # and only those that were seen have one
        seen = torch.cat([batches[t % len(batches)] for t in range(4)]).unique()
        unseen = [i for i in range(TRAIN) if i not in seen]
        assert straight[unseen].abs().sum() == 0


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_tensors_and_indexed_loaders_move_the_same_variables(name):
    """After one step on one batch exactly the batch's samples have a hypergradient, for any source of batches."""
    (x, y), (vx, vy) = split()
    x = x.double()
    for train, size in (((x, y), 5), (DataLoader(Indexed(TensorDataset(x, y)), batch_size=5, shuffle=True), None)):
        problem = Bilevel(
            linear_model(), PER_SAMPLE[name](), train=train, val=(vx.double(), vy), batch_size=size, seed=3
        )
        index = problem.train_batch(0).index
        gradient = gradient_of(problem, 1, SGD(0.1))
        assert sorted(gradient.nonzero().flatten().tolist()) == sorted(index.tolist())


def test_one_step_of_descent_by_hand():
    """dF/dw_i = −lr·⟨∇F(θ'), ∇l_i(θ)⟩/n for one step of plain descent, sample by sample."""
    (x, y), (vx, vy) = split()
    x, vx = x.double(), vx.double()
    problem = Bilevel(linear_model(), SampleWeights(TRAIN, initial_weight=0.5), train=(x, y), val=(vx, vy))
    gradient = gradient_of(problem, 1, SGD(0.7))
    theta = problem.view.initial().requires_grad_()
    losses = cross_entropy(problem.view.bind(theta, {})(x), y)
    each = torch.stack([torch.autograd.grad(loss, theta, retain_graph=True)[0] for loss in losses])
    after = (theta - 0.7 * 0.5 * each.mean(0)).detach().requires_grad_()
    (outer,) = torch.autograd.grad(cross_entropy(problem.view.bind(after, {})(vx), vy).mean(), after)
    torch.testing.assert_close(gradient, -0.7 * (each @ outer) / TRAIN, rtol=1e-12, atol=1e-14)
