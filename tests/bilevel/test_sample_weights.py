"""Outer variables with one entry per sample: priors, smoothing over neighbours, and samples in any order and batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    Bilevel,
    LabelSmoothing,
    OuterVariable,
    OuterVariables,
    SampleWeights,
    SmoothedWeights,
    Unrolled,
    neighbourhood,
    solve,
)
from calibrant.bilevel.callbacks import Callback
from calibrant.data import Batch, Indexed
from calibrant.losses.classification import cross_entropy
from tests.bilevel.variable_cases import CLASSES, TRAIN, filled, linear_model, split

LABELS = torch.arange(TRAIN) % CLASSES
ROWS = torch.tensor([7, 2, 2, 11])


def inputs(n=TRAIN, d=2, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batches(hyper):
    x = inputs()
    return Batch(x, LABELS, slice(None), hyper=hyper), Batch(x[ROWS], LABELS[ROWS], ROWS, hyper=hyper)


@pytest.mark.parametrize("form", ["clip", "sigmoid"])
def test_the_prior_is_the_distance_from_one(form):
    outer = filled(SampleWeights(TRAIN, form=form, prior_strength=3.0))
    expected = sum(1.5 * (w - 1) ** 2 for w in outer.weights().tolist()) / TRAIN
    assert outer.prior().item() == pytest.approx(expected, rel=1e-13)
    assert SampleWeights(TRAIN).prior() == 0.0
    assert SampleWeights(TRAIN, prior_strength=3.0).prior().item() == 0.0  # all weights are 1


def test_priors_of_a_chain_enter_only_the_outer_loss():
    chain = filled(OuterVariables(SampleWeights(TRAIN, prior_strength=1.0), SampleWeights(TRAIN, prior_strength=2.0)))
    assert chain.prior().item() == pytest.approx(sum(p.prior().item() for p in chain.parts), rel=1e-13)
    assert OuterVariables(L2(nn.Linear(2, 2)), OuterVariable()).prior() == 0.0
    x = inputs()
    problem = Bilevel(nn.Linear(2, CLASSES).double(), chain, train=(x, LABELS), val=(x, LABELS))
    params, phi = problem.view.initial(), problem.initial_phi()
    plain = nn.functional.cross_entropy(problem.view.bind(params, {})(x), LABELS)
    outer, _ = problem.outer(params, {}, phi, problem.val_batch(0))
    assert outer.item() == pytest.approx(plain.item() + chain.prior().item(), rel=1e-13)
    losses = nn.functional.cross_entropy(problem.view.bind(params, {})(x), LABELS, reduction="none")
    inner, _ = problem.inner(params, {}, phi, problem.train_batch(0))
    by_hand = losses * chain.parts[0].weights() * chain.parts[1].weights()
    assert inner.item() == pytest.approx(by_hand.mean().item(), rel=1e-13)


def test_a_strong_prior_holds_the_weights_at_one():
    torch.manual_seed(0)
    x, y = inputs(60), torch.randint(0, CLASSES, (60,))
    spread = {}
    for strength in (0.0, 5.0):
        torch.manual_seed(1)
        outer = SampleWeights(40, initial_weight=0.5, prior_strength=strength)
        problem = Bilevel(nn.Linear(2, CLASSES).double(), outer, train=(x[:40], y[:40]), val=(x[40:], y[40:]))
        solution = solve(
            problem, hypergradient=Unrolled(5), inner_optimizer=SGD(0.5), outer_optimizer=SGD(5.0), outer_steps=40
        )
        spread[strength] = (solution.outer_variables()["raw"] - 1).abs().mean().item()
    assert 4 * spread[5.0] < spread[0.0]


def dense_kernel(x, y, width):
    z = (x - x.mean(0)) / x.std(0, unbiased=False)
    kernel = torch.exp(-torch.cdist(z, z).square() / (2 * width**2)) * (y[:, None] == y[None, :])
    return kernel / kernel.sum(1, keepdim=True)


def as_dense(found, n):
    return torch.zeros(n, n, dtype=found["kernel"].dtype).scatter_add(1, found["neighbours"], found["kernel"])


def test_the_kernel_is_a_gaussian_over_the_same_label():
    x = inputs(30, 3) * torch.tensor([1.0, 10.0, 0.1])
    y = torch.tensor([0] * 20 + [1] * 9 + [2])  # classes smaller than the neighbourhood fill up with weight 0
    found = neighbourhood(x, y, neighbours=25, width=0.8)
    assert found["neighbours"].shape == found["kernel"].shape == (30, 25)
    assert found["kernel"].dtype == torch.float64
    torch.testing.assert_close(as_dense(found, 30), dense_kernel(x, y, 0.8), rtol=1e-5, atol=1e-7)
    near = neighbourhood(x, y, neighbours=4, width=0.8)
    assert near["kernel"].sum(1).tolist() == pytest.approx([1.0] * 30)
    assert as_dense(near, 30)[29].tolist() == [0.0] * 29 + [1.0]
    largest = dense_kernel(x, y, 0.8).topk(4, dim=1).indices.sort(1).values
    assert torch.equal(near["neighbours"][:20].sort(1).values, largest[:20])


def test_the_width_fits_the_dimension_and_reaches_the_nearest_neighbour():
    x, y = inputs(2000), torch.zeros(2000, dtype=torch.long)
    assert torch.equal(neighbourhood(x, y)["kernel"], neighbourhood(x, y, width=0.15)["kernel"])
    found = neighbourhood(inputs(200, 50), torch.zeros(200, dtype=torch.long))["kernel"]
    assert found[:, 0].median() < 0.5  # far from each other, and yet not each to itself
    assert neighbourhood(x[:5], torch.arange(5))["kernel"][:, 0].tolist() == [1.0] * 5


@pytest.mark.parametrize("form", ["clip", "sigmoid"])
def test_smoothed_weights_average_their_neighbours(form):
    hyper = neighbourhood(inputs(), LABELS, neighbours=3, width=1.0)
    outer = filled(SmoothedWeights(TRAIN, form=form, prior_strength=1.0))
    values = outer.raw.detach() if form == "clip" else torch.sigmoid(outer.raw.detach())
    expected = as_dense(hyper, TRAIN) @ values
    torch.testing.assert_close(outer.weights(hyper).detach(), expected)
    losses = torch.rand(TRAIN, dtype=torch.float64)
    full, mini = batches(hyper)
    torch.testing.assert_close(outer.weigh(losses, full).detach(), losses * expected)
    torch.testing.assert_close(outer.weigh(losses[:4], mini).detach(), losses[:4] * expected[ROWS])
    assert outer.prior().item() == pytest.approx(0.5 * (values - 1).square().mean().item(), rel=1e-13)


def test_smoothed_weights_of_many_samples_are_cheap():
    """A gather over the neighbours of the batch, never an n×n matrix."""
    x, y = inputs(50_000).float(), torch.zeros(50_000, dtype=torch.long)
    hyper = neighbourhood(x, y, neighbours=8)
    rows = torch.arange(0, 50_000, 100)
    outer = SmoothedWeights(50_000)
    outer.weigh(torch.ones(500), Batch(x[rows], y[rows], rows, hyper=hyper)).sum().backward()
    assert outer.raw.grad.sum().item() == pytest.approx(500, rel=1e-4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SampleWeights(3, prior_strength=-1.0), "prior_strength must be at least 0 and finite; got -1.0"),
        (lambda: SampleWeights(3, prior_strength=math.nan), "got nan"),
        (
            lambda: SmoothedWeights(TRAIN).weigh(torch.ones(TRAIN), batches({})[0]),
            r"needs batch.hyper\['neighbours'\] and \['kernel'\]",
        ),
        (lambda: SmoothedWeights(TRAIN).weights(), "hyper=neighbourhood"),
        (
            lambda: SmoothedWeights(5).weights(neighbourhood(inputs(), LABELS)),
            "made for the 5 samples of the weights; got 12",
        ),
        (lambda: neighbourhood(inputs(), LABELS, neighbours=0), "neighbours must be at least 1"),
        (lambda: neighbourhood(inputs(), LABELS, width=0.0), "width must be positive and finite; got 0.0"),
        (lambda: neighbourhood(inputs(), LABELS[:3]), r"each of the 12 samples; got shape \(3,\)"),
    ],
)
def test_errors_say_what_is_wrong(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


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
