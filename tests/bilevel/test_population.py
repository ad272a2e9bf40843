"""Tests of populations: every member equals its single run."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.bilevel import (
    CG,
    L2,
    SGD,
    Adam,
    AdamW,
    Forward,
    Implicit,
    InitialPoint,
    LabelSmoothing,
    Neumann,
    OneStep,
    Plain,
    Population,
    SampleWeights,
    Truncated,
    Unrolled,
    solve,
)
from calibrant.data import TensorStream
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, hidden_dropout, mlp, problem, rich_mlp, run
from tests.bilevel.member_cases import INNER, KINDS, MEMBERS, OUTER, SHARED, WithConstant, frozen


def assert_each_is_its_single_run(make, tolerance=1e-8, **settings):
    def several(value, member):
        return value(member) if inspect.isfunction(value) else value

    together = run(
        Population([make(seed) for seed in range(MEMBERS)]), **{k: several(v, None) for k, v in settings.items()}
    )
    for member in (0, MEMBERS - 1):
        alone = run(make(member), **{k: several(v, member) for k, v in settings.items()})
        mine = together.member(member)
        assert torch.allclose(mine.params, alone.params, rtol=0, atol=tolerance)
        assert torch.allclose(mine.phi, alone.phi, rtol=0, atol=tolerance)
        for name, buffer in alone.buffers.items():
            assert torch.allclose(mine.buffers[name].double(), buffer.double(), rtol=0, atol=tolerance)
        assert not torch.equal(alone.phi, make(member).initial_phi())
    return together


def rate(values, kind):
    return lambda member: kind(values if member is None else values[member].item())


@pytest.mark.parametrize("kind", KINDS)
def test_each_member_is_its_single_run(kind):
    """Over 200 inner steps, with learning rates of both levels as vectors."""
    make = KINDS[kind]
    assert_each_is_its_single_run(
        make,
        hypergradient=Unrolled(10),
        inner_optimizer=rate(INNER, Adam),
        outer_optimizer=rate(OUTER * (0.01 if kind == "penalties" else 1.0), SGD),
        outer_steps=20,
    )


@pytest.mark.parametrize(
    "hypergradient",
    [Truncated(5, 2), Unrolled(5, memory="checkpoints"), OneStep(2), OneStep(2, "head")],
    ids=["truncated", "checkpoints", "one step", "head"],
)
@pytest.mark.parametrize(
    "optimizer",
    [lambda lr: SGD(lr, momentum=0.9, nesterov=True), lambda lr: AdamW(lr, weight_decay=0.1)],
    ids=["nesterov", "adamw"],
)
def test_every_hypergradient_works_on_members(hypergradient, optimizer):
    assert_each_is_its_single_run(
        KINDS["batch norm, dropout, mini-batches"],
        hypergradient=hypergradient,
        inner_optimizer=rate(INNER, optimizer),
        outer_optimizer=rate(OUTER, SGD),
    )


@pytest.mark.parametrize("solver", [CG(50, 1e-12), Neumann(30)], ids=["cg", "neumann"])
def test_implicit_hypergradients_work_on_members(solver):
    assert_each_is_its_single_run(
        KINDS["shared data"],
        hypergradient=Implicit(10, solve=solver, damping=1.0),
        inner_optimizer=rate(INNER * 10, SGD),
    )


def test_rates_that_are_scheduled_by_member():
    assert_each_is_its_single_run(
        KINDS["own data"], inner_optimizer=rate(INNER, lambda lr: Adam(lambda step: lr / step**0.5))
    )


def test_forward_mode_works_on_members():
    assert_each_is_its_single_run(
        lambda seed: problem(rich_mlp(seed), seed=seed, batch_size=8, outer=L2(rich_mlp(), initial=0.01)),
        hypergradient=Forward(4),
        outer_optimizer=rate(OUTER / 10, SGD),
    )


def test_starting_points_are_learned_by_each_member():
    assert_each_is_its_single_run(
        lambda seed: problem(mlp(seed), seed=seed, outer=InitialPoint(mlp(seed))),
        outer_optimizer=rate(OUTER / 10, SGD),
        restart=True,
    )


def test_low_precision_works_on_members():
    def make(seed):
        return problem(mlp(seed, dtype=torch.float32), seed=seed, autocast=torch.bfloat16)

    together = run(Population([make(seed) for seed in range(MEMBERS)]), inner_optimizer=SGD(0.1))
    for member in range(MEMBERS):
        alone = run(make(member), inner_optimizer=SGD(0.1))
        assert (together.params[member] - alone.params).norm() < 0.01 * alone.params.norm()


def test_clipping_is_by_member():
    assert_each_is_its_single_run(KINDS["own data"], clip_norm=1e-3, outer_optimizer=SGD(50.0))


@pytest.mark.parametrize("kind", ["shared data", "batch norm, dropout, mini-batches", "constants"])
def test_traced_members_are_their_single_runs(kind):
    eager = run(Population([KINDS[kind](seed) for seed in range(MEMBERS)]), inner_optimizer=Adam(INNER))
    traced = run(
        Population([KINDS[kind](seed) for seed in range(MEMBERS)]), inner_optimizer=Adam(INNER), compile="trace"
    )
    assert torch.allclose(traced.params, eager.params, rtol=0, atol=1e-10)
    assert torch.allclose(traced.phi, eager.phi, rtol=0, atol=1e-10)
    assert traced.compile_seconds > 0


def test_plain_training_of_members_without_validation_data():
    def make(seed):
        return problem(mlp(seed), seed=seed, val=None)

    settings = {"hypergradient": Plain(10), "outer_steps": 20}
    together = solve(Population([make(s) for s in range(MEMBERS)]), inner_optimizer=Adam(INNER), **settings)
    for member in range(MEMBERS):
        alone = solve(make(member), inner_optimizer=Adam(INNER[member].item()), **settings)
        assert torch.allclose(together.params[member], alone.params, rtol=0, atol=1e-8)


def test_shared_data_is_not_copied():
    shared = Population([KINDS["shared data"](seed) for seed in range(MEMBERS)])
    batch = shared.train_batch(0)
    assert batch.inputs is SHARED[0][0]
    assert batch.targets is SHARED[0][1]
    assert shared.train.axes.inputs is None
    assert shared.val.axes.targets is None
    own = Population([KINDS["own data"](seed) for seed in range(MEMBERS)])
    assert own.train_batch(0).inputs.shape == (MEMBERS, SAMPLES, 2)
    assert own.train_batch(7) is own.train_batch(0)  # stacked once
    constants = Population([KINDS["constants"](seed) for seed in range(MEMBERS)])
    assert constants.train.axes.hyper == {"sharpness": 0}


def another_loss(net, outer, batch):
    return F.cross_entropy(net(batch.inputs), batch.targets)


MISUSES = {
    "nobody": (list, "at least one problem"),
    "architecture": (lambda: [problem(), problem(nn.Linear(2, CLASSES).double())], "Member 1.*the architecture"),
    "activation": (lambda: [problem(), problem(mlp(activation=nn.ReLU))], "settings of its layers"),
    "outer variables": (lambda: [problem(), problem(outer=L2(mlp()))], "the outer variables"),
    "inner loss": (lambda: [problem(), problem(inner_loss=another_loss)], "its losses.*hyper"),
    "outer loss": (lambda: [problem(), problem(outer_loss=another_loss)], "its losses.*hyper"),
    "frozen": (lambda: [problem(frozen(0)), problem(frozen(1))], "frozen parameters"),
    "form of the outer variables": (
        lambda: [problem(outer=SampleWeights(SAMPLES, form=form)) for form in ("clip", "sigmoid")],
        "settings",
    ),
    "range of the outer variables": (
        lambda: [problem(outer=LabelSmoothing(SAMPLES, largest=largest)) for largest in (0.5, 1.0)],
        "settings",
    ),
    "constants of the outer variables": (
        lambda: [problem(outer=WithConstant(value)) for value in (0.0, 1.0)],
        "buffers of its outer variables",
    ),
    "validation": (lambda: [problem(), problem(val=None)], "validation data"),
    "precision": (lambda: [problem(), problem(mlp(dtype=torch.float32))], "dtype"),
    "hidden randomness": (lambda: [problem(hidden_dropout()), problem(hidden_dropout())], r"nn\.Dropout"),
    "numbers of samples": (
        lambda: [problem(), problem(val=blobs(3, 11))],
        r"different shapes \(\(11, 2\), \(20, 2\)\)",
    ),
    "constants that are no tensors": (
        lambda: [problem(hyper={"a": 1.0}), problem(hyper={"a": 2.0})],
        "must be tensors",
    ),
    "names of constants": (
        lambda: [problem(hyper={"a": torch.ones(())}), problem(hyper={"b": torch.ones(())})],
        "structure",
    ),
}


@pytest.mark.parametrize("case", MISUSES)
def test_what_cannot_run_as_one_is_refused(case):
    make, sentence = MISUSES[case]
    with pytest.raises(ValueError, match=sentence):
        Population(make())


def test_vectors_of_the_wrong_length_are_refused():
    together = Population([problem(), problem(seed=1)])
    with pytest.raises(ValueError, match="outer_steps must be a number, or one per member"):
        run(together, outer_steps=torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="inner learning rate"):
        run(together, inner_optimizer=SGD(torch.tensor([0.1, 0.2, 0.3])))
    with pytest.raises(ValueError, match="outer learning rate"):
        run(together, outer_optimizer=SGD(torch.tensor([0.1])))
    with pytest.raises(ValueError, match="inner learning rate"):
        run(together, inner_optimizer=SGD(lambda step: torch.tensor([0.1, 0.2, 0.3]) / step))


def test_members_are_taken_out_of_a_solution():
    cases = [problem(rich_mlp(seed), seed=seed) for seed in range(MEMBERS)]
    solution = run(Population(cases))
    x, _ = blobs(8)
    for member in range(MEMBERS):
        mine = solution.member(member)
        assert mine.problem is cases[member]
        module = mine.export(rich_mlp(9)).eval()
        with torch.no_grad():
            assert torch.allclose(module(x), mine.logits(x), rtol=0, atol=1e-12)
        assert mine.outer_variables()["raw"].shape == (SAMPLES,)
    assert solution.outer_variables()["raw"].shape == (MEMBERS, SAMPLES)
    with pytest.raises(ValueError, match=r"solution\.member\(k\)\.export"):
        solution.export(rich_mlp())
    with pytest.raises(ValueError, match=r"solution\.member\(k\)\.logits"):
        solution.logits(x)


def test_frozen_parameters_may_be_shared():
    members = []
    for seed in range(2):
        model = frozen(0)
        torch.manual_seed(seed)
        nn.init.normal_(model[2].weight)
        members.append(problem(model, seed=seed, outer=SampleWeights(SAMPLES)))
    solution = run(Population(members))
    assert torch.equal(solution.member(1).export(mlp(5))[2].weight, solution.params[1][:18].view(3, 6))


def test_members_may_hold_different_rows_of_one_set():
    """Folds of 20 samples whose weights are one φ of 20 entries: each member moves the weights of its own rows."""
    x, y = blobs(1)
    rows = [torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(s))[:14] for s in range(MEMBERS)]

    def make(seed, batch_size=None):
        train = TensorStream(x[rows[seed]], y[rows[seed]], index=rows[seed], batch_size=batch_size, seed=seed)
        return problem(mlp(seed), seed=seed, train=train, val=SHARED[1])

    for size in (None, 5):
        together = assert_each_is_its_single_run(lambda seed, size=size: make(seed, size))
        for member, own in enumerate(rows):
            moved = together.phi[member] != make(member).initial_phi()
            assert set(moved.nonzero().flatten().tolist()) <= set(own.tolist())
            assert moved.sum() > 7
