"""Tests of tied members: K networks, each trained without one fold, move one φ by their mean held-out loss."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.bilevel import (
    SGD,
    Adam,
    Bilevel,
    Checkpoint,
    EarlyStopping,
    GroupedOptimizer,
    History,
    OneStep,
    Plain,
    Population,
    SampleWeights,
    Truncated,
    Unrolled,
)
from calibrant.bilevel.problem.population import SharedPhi
from calibrant.data import TensorStream
from tests.bilevel.loop_cases import SAMPLES, blobs, mlp, problem, run

FOLDS = 4
X, Y = blobs(3)
HELD_OUT = [torch.arange(SAMPLES)[k::FOLDS] for k in range(FOLDS)]
TRAINED = [torch.tensor([i for i in range(SAMPLES) if i % FOLDS != k]) for k in range(FOLDS)]
UNEVEN = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)


def rows(index):
    return TensorStream(X[index], Y[index], index=index)


def fold(k, seed=None, **kwargs):
    """A network trained without fold k and evaluated on it; φ weighs all samples."""
    seed = k if seed is None else seed
    return problem(mlp(seed), seed=seed, **{"train": rows(TRAINED[k]), "val": rows(HELD_OUT[k]), **kwargs})


def cross_validated(**kwargs):
    return Population([fold(k) for k in range(FOLDS)], tied=[0] * FOLDS, **kwargs)


class Heads(nn.Module):
    """The folds' networks as one module."""

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(mlp(k) for k in range(FOLDS))

    def forward(self, x):
        return torch.stack([net(x) for net in self.nets])


def stacked(shares):
    """The same as one problem: inner losses add up (each acts on its own network), outer losses are averaged."""
    shares = shares / shares.sum()

    def losses(net, batch):
        outputs = net(batch.inputs)
        return torch.stack([F.cross_entropy(o, batch.targets, reduction="none") for o in outputs])

    def inner(net, outer, batch):
        weighted = outer.weights() * losses(net, batch)
        return sum(weighted[k, TRAINED[k]].mean() for k in range(FOLDS))

    def outer(net, variables, batch):
        each = losses(net, batch)
        return sum(shares[k] * each[k, HELD_OUT[k]].mean() for k in range(FOLDS))

    weights = SampleWeights(SAMPLES, initial_weight=0.7)
    return Bilevel(Heads(), weights, train=(X, Y), val=(X, Y), inner_loss=inner, outer_loss=outer)


@pytest.mark.parametrize("shares", [None, UNEVEN], ids=["equal", "uneven"])
@pytest.mark.parametrize("hypergradient", [Unrolled(5), Truncated(5, 2), OneStep(3)], ids=repr)
@pytest.mark.parametrize("clip_norm", [None, 0.02])
def test_tied_members_are_one_problem_with_the_mean_outer_loss(hypergradient, shares, clip_norm):
    settings = {"hypergradient": hypergradient, "clip_norm": clip_norm, "outer_optimizer": Adam(0.05)}
    history = History()
    tied = run(cross_validated(shares=shares), callbacks=[history], **settings)
    one = run(stacked(torch.ones(FOLDS) if shares is None else shares), **settings)
    assert torch.allclose(tied.params.flatten(), one.params, rtol=0, atol=1e-10)
    for member in range(FOLDS):
        assert torch.allclose(tied.phi[member], one.phi, rtol=0, atol=1e-10)
        assert torch.equal(tied.phi[member], tied.phi[0])  # to the bit
    assert (one.phi - 0.7).abs().max() > 0.05
    norms = history["gradient_norm"]
    assert torch.equal(norms, norms[:, :1].expand(-1, FOLDS))


def test_the_group_follows_the_derivative_of_its_mean_loss():
    """The step that φ takes, against central differences of Σ s_k F_k(φ, θ_T(φ))."""
    steps, first = 6, fold(0)
    starts = [mlp(k) for k in range(FOLDS)]
    shares = UNEVEN / UNEVEN.sum()

    def members(phi):
        data = [{"train": rows(TRAINED[k]), "val": rows(HELD_OUT[k])} for k in range(FOLDS)]
        return [first.replicate(start, phi, **d) for start, d in zip(starts, data, strict=True)]

    def mean_loss(phi):
        population = Population(members(phi))
        end = run(population, hypergradient=Plain(steps), outer_optimizer=None, outer_steps=1)
        return shares @ population.outer(end.params, end.buffers, end.phi, population.val_batch(0))[0]

    phi = torch.linspace(0.3, 0.8, SAMPLES, dtype=torch.float64)
    tied = Population(members(phi), tied=[5] * FOLDS, shares=UNEVEN)
    moved = run(tied, hypergradient=Unrolled(steps), outer_optimizer=SGD(1e-3), outer_steps=1).phi[0]
    gradient, step = (phi - moved) / 1e-3, 1e-5
    for direction in torch.eye(SAMPLES, dtype=torch.float64)[:6]:
        slope = (mean_loss(phi + step * direction) - mean_loss(phi - step * direction)) / (2 * step)
        assert float(gradient @ direction) == pytest.approx(float(slope), abs=1e-8)
    assert gradient.abs().max() > 1e-3


def test_groups_do_not_affect_each_other():
    """Labels in any order, groups of any size; a group of one equals its single run."""
    members = [fold(0), fold(1), fold(0, seed=5), fold(2), fold(1, seed=6)]
    together = run(Population(members, tied=[9, 2, 7, 9, 2]))
    for group in ([0, 3], [1, 4], [2]):
        alone = run(Population([members[k] for k in group], tied=[0] * len(group)))
        assert torch.allclose(together.params[group], alone.params, rtol=0, atol=1e-12)
        assert torch.allclose(together.phi[group], alone.phi, rtol=0, atol=1e-12)
    single = run(members[2])
    assert torch.allclose(together.phi[2], single.phi, rtol=0, atol=1e-12)
    assert not torch.allclose(together.phi[0], together.phi[1], atol=1e-3)


def broken(k, part):
    index = (TRAINED if part == "train" else HELD_OUT)[k]
    return fold(k, **{part: TensorStream(X[index] * float("nan"), Y[index], index=index)})


@pytest.mark.parametrize("hypergradient", [Unrolled(4), OneStep(2)], ids=repr)
@pytest.mark.parametrize("part", ["train", "val"])
def test_a_member_that_fails_leaves_its_group_going(part, hypergradient):
    members = [fold(0), broken(1, part), fold(2), fold(3)]
    solution = run(Population(members, tied=[0] * FOLDS), hypergradient=hypergradient)
    assert set(solution.failures) == {1}
    rest = run(Population([members[k] for k in (0, 2, 3)], tied=[0] * 3), hypergradient=hypergradient)
    assert torch.allclose(solution.params[[0, 2, 3]], rest.params, rtol=0, atol=1e-12)
    assert torch.allclose(solution.phi, rest.phi[0].expand(FOLDS, -1), rtol=0, atol=1e-12)  # that of the failed, too
    assert torch.equal(solution.params[1], members[1].view.initial())


def test_a_group_of_which_all_fail_ends_alone():
    members = [broken(0, "train"), broken(1, "val"), fold(2), fold(3)]
    solution = run(Population(members, tied=[0, 0, 1, 1]))
    assert set(solution.failures) == {0, 1}
    assert torch.equal(solution.phi[0], members[0].initial_phi())
    rest = run(Population(members[2:], tied=[1, 1]))
    assert torch.allclose(solution.phi[2:], rest.phi, rtol=0, atol=1e-12)


def test_members_may_take_different_numbers_of_steps():
    """A member that has stopped no longer counts; φ moves while any of its group runs."""
    steps = torch.tensor([5, 2, 5, 5])
    solution = run(cross_validated(), outer_steps=steps)
    short = run(cross_validated(), outer_steps=2)
    assert torch.allclose(solution.params[1], short.params[1], rtol=0, atol=1e-12)
    assert torch.equal(solution.phi, solution.phi[:1].expand(FOLDS, -1))
    assert not torch.equal(solution.phi, short.phi)


def test_tied_runs_are_resumed_and_traced(tmp_path):
    path = tmp_path / "run.safetensors"
    settings = {"outer_optimizer": Adam(0.05)}
    whole = run(cross_validated(), outer_steps=6, **settings)
    run(cross_validated(), outer_steps=3, callbacks=[Checkpoint(path, every=3)], **settings)
    resumed = run(cross_validated(), outer_steps=6, callbacks=[Checkpoint(path, every=3)], resume=path, **settings)
    assert torch.equal(resumed.params, whole.params)
    assert torch.equal(resumed.phi, whole.phi)
    traced = run(cross_validated(), outer_steps=6, compile="trace", **settings)
    assert torch.allclose(traced.phi, whole.phi, rtol=0, atol=1e-10)
    untied = Population([fold(k) for k in range(FOLDS)])
    run(untied, outer_steps=3, callbacks=[Checkpoint(path, every=3)], **settings)
    with pytest.raises(ValueError, match="tied in other groups"):
        run(cross_validated(), outer_steps=6, callbacks=[Checkpoint(path, every=3)], resume=path, **settings)


def test_early_stopping_judges_and_stops_whole_groups():
    shares, stopping = UNEVEN, EarlyStopping(patience=2, min_delta=0.03)
    members = [fold(k % FOLDS, seed=k) for k in range(2 * FOLDS)]
    tied = Population(members, tied=[0] * FOLDS + [1] * FOLDS, shares=torch.cat([shares, shares]))
    solution = run(tied, outer_steps=40, callbacks=[stopping])
    assert set(solution.reasons.values()) == {"no improvement for 2 outer steps"}
    for group in (slice(0, FOLDS), slice(FOLDS, None)):
        assert len(set(stopping.best_step[group].tolist())) == 1
        # At the state that was restored, the mean of the group's outer losses is the best value.
        values = tied.outer(solution.params, solution.buffers, solution.phi, tied.val_batch(0))[0][group]
        assert torch.allclose(stopping.best[group], (values @ shares / shares.sum()).expand(FOLDS), atol=1e-12)
    assert torch.equal(solution.phi, solution.phi[[0] * FOLDS + [FOLDS] * FOLDS])
    assert stopping.best_step[0] != stopping.best_step[-1]


def test_early_stopping_restores_one_phi_where_a_member_failed():
    members = [fold(0), broken(1, "val"), fold(2), fold(3)]
    solution = run(Population(members, tied=[0] * 4), outer_steps=30, callbacks=[EarlyStopping(patience=2)])
    assert set(solution.failures) == {1}
    assert torch.equal(solution.phi, solution.phi[:1].expand(4, -1))


def test_means_are_taken_by_group_over_those_that_count():
    shared_phi = SharedPhi([3, 1, 3, 3, 1], shares=[1, 1, 3, 2, 1])
    values = torch.tensor([[1.0], [10.0], [5.0], [float("nan")], [20.0]])
    counts = torch.tensor([True, True, True, False, False])
    assert shared_phi.mean(values, counts).tolist() == [[4.0], [10.0], [4.0], [4.0], [10.0]]
    assert shared_phi.mean(values[:, 0], counts).tolist() == [4.0, 10.0, 4.0, 4.0, 10.0]
    assert shared_phi.mean(values, torch.zeros(5, dtype=torch.bool)).tolist() == [[0.0]] * 5
    assert shared_phi.any(torch.tensor([False, False, False, True, False])).tolist() == [True, False, True, True, False]


RATES = torch.tensor([0.1, 0.1, 0.1, 0.2])
MISUSES = {
    "labels": (lambda: Population([fold(0), fold(1)], tied=[0]), r"one label per member \(2\); got 1"),
    "shares alone": (lambda: Population([fold(0)], shares=[1.0]), "shares must be None without tied"),
    "number of shares": (lambda: cross_validated(shares=[1.0]), "one entry per member"),
    "no share": (lambda: cross_validated(shares=[0.0, 1.0, 1.0, 1.0]), "positive and finite"),
    "start": (
        lambda: Population([fold(0), fold(1, outer=SampleWeights(SAMPLES))], tied=[0, 0]),
        "start from equal values",
    ),
    "rates": (lambda: run(cross_validated(), outer_optimizer=SGD(RATES)), "the same for all members of a tied group"),
    "rates of parts": (
        lambda: run(cross_validated(), outer_optimizer=GroupedOptimizer(parts=((SAMPLES, SGD(RATES)),))),
        "the same for all members of a tied group",
    ),
}


@pytest.mark.parametrize("case", MISUSES)
def test_what_cannot_be_tied_is_refused(case):
    make, sentence = MISUSES[case]
    with pytest.raises(ValueError, match=sentence):
        make()


def test_rates_may_differ_between_groups():
    rates = torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64)
    together = run(Population([fold(k) for k in range(4)], tied=[0, 0, 1, 1]), outer_optimizer=SGD(rates))
    alone = run(Population([fold(2), fold(3)], tied=[0, 0]), outer_optimizer=SGD(3.0))
    assert torch.allclose(together.phi[2:], alone.phi, rtol=0, atol=1e-12)
