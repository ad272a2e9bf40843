"""Populations: every member equals its single run, and replicas equal problems built from scratch."""

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
from calibrant.models.functional.functional_module import FunctionalModule
from tests.bilevel.loop_cases import (
    CLASSES,
    INNER,
    KINDS,
    MEMBERS,
    OUTER,
    SAMPLES,
    SHARED,
    WithConstant,
    blobs,
    convolutional,
    frozen,
    hidden_dropout,
    jitter,
    mlp,
    problem,
    rich_mlp,
    run,
)


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


def replica(first, seed, **kwargs):
    """The problem ``problem(mlp(seed), seed=seed)``, made from another problem."""
    return first.replicate(train=blobs(seed), val=blobs(seed + 100), seed=seed, **kwargs)


REPLICAS = {
    "own data": (KINDS["own data"], lambda first, s: replica(first, s, model=mlp(s))),
    "shared data": (KINDS["shared data"], lambda first, s: first.replicate(mlp(s), seed=s)),
    "mini-batches": (KINDS["mini-batches"], lambda first, s: replica(first, s, model=mlp(s))),
    "batch norm, dropout, mini-batches": (
        KINDS["batch norm, dropout, mini-batches"],
        lambda first, s: replica(first, s, model=rich_mlp(s)),
    ),
    "augmentation": (
        KINDS["augmentation"],
        lambda first, s: first.replicate(
            mlp(s), seed=s, train=TensorStream(*blobs(s), batch_size=8, augment=jitter, seed=s), val=blobs(s + 100)
        ),
    ),
    "constants": (
        KINDS["constants"],
        lambda first, s: replica(first, s, model=mlp(s), hyper={"sharpness": torch.tensor(1.0 + s)}),
    ),
    "outer start": (
        lambda s: problem(mlp(s), seed=s, outer=L2(mlp(), initial=0.01 + s)),
        lambda first, s: replica(first, s, model=mlp(s), outer=L2(mlp(), initial=0.01 + s)),
    ),
    "vectors": (
        lambda s: problem(mlp(s), seed=s, outer=SampleWeights(SAMPLES, initial_weight=0.5 + s / 20)),
        lambda first, s: replica(first, s, model=first.view.draw(s), outer=torch.full((SAMPLES,), 0.5 + s / 20)),
    ),
}


@pytest.mark.parametrize("kind", REPLICAS)
def test_replicas_are_the_problems_that_would_have_been_built(kind):
    build, replicate = REPLICAS[kind]
    built = run(Population([build(seed) for seed in range(MEMBERS)]))
    first = build(7)
    replicas = [replicate(first, seed) for seed in range(MEMBERS)]
    solution = run(Population(replicas))
    assert torch.equal(solution.params, built.params)
    assert torch.equal(solution.phi, built.phi)
    assert all(torch.equal(solution.buffers[k], b) for k, b in built.buffers.items())
    assert torch.equal(run(replicas[2]).params, run(build(2)).params)
    assert torch.equal(run(first).params, run(build(7)).params)  # which stays as it was


def test_replicas_share_what_they_can():
    x, y = blobs(1)
    first = problem(train=(x.float().numpy(), y.numpy()), hyper={"a": torch.ones(2)})
    other = first.replicate(mlp(3), seed=3)
    assert other.view is first.view
    assert other.train.hyper["a"] is first.train.hyper["a"] is other.val.hyper["a"]
    assert other.train.inputs is first.train.inputs  # as converted, not converted again
    assert Population([first, other]).train.axes.inputs is None
    assert first.replicate(mlp(3)).train is first.train
    given = TensorStream(x, y)
    assert problem(train=given).replicate(seed=4).train is given


@pytest.mark.parametrize(
    "build",
    [
        lambda: mlp(5),
        lambda: rich_mlp(5, torch.float32),
        lambda: convolutional(5),
        lambda: (torch.manual_seed(5), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))[1],
    ],
    ids=["mlp", "float32", "convolution", "transformer"],
)
def test_drawn_parameters_equal_those_of_a_new_module(build):
    view = FunctionalModule(build())
    state = torch.get_rng_state()
    drawn, other = view.draw(5), view.draw(6)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn, view.initial())
    assert torch.equal(view.draw(5), drawn)
    assert drawn.dtype == view.initial().dtype
    assert not torch.equal(other, drawn)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.scale


BAD_REPLICAS = {
    "architecture": (lambda: problem().replicate(nn.Linear(2, CLASSES)), "must have the same architecture"),
    "activation": (lambda: problem().replicate(mlp(activation=nn.ReLU)), "settings of its layers"),
    "frozen elsewhere": (lambda: problem().replicate(frozen(0)), "must have the same architecture"),
    "frozen values": (lambda: problem(frozen(0)).replicate(frozen(1)), r"frozen parameter 0\.weight"),
    "vector": (lambda: problem().replicate(torch.zeros(7)), r"vector of 39 numbers; got shape \(7,\)"),
    "outer vector": (lambda: problem().replicate(outer=torch.zeros(7)), "vector of 20 numbers"),
    "outer settings": (lambda: problem().replicate(outer=SampleWeights(SAMPLES, form="sigmoid")), "architecture"),
    "outer constants": (
        lambda: problem(outer=WithConstant(0.0)).replicate(outer=WithConstant(1.0)),
        "since replicas share them",
    ),
    "validation": (lambda: problem(val=None).replicate(val=blobs(3)), "no validation data"),
    "constants of a stream": (
        lambda: problem(train=TensorStream(*blobs())).replicate(hyper={"a": torch.ones(())}),
        "set them on the Stream",
    ),
    "no reset": (lambda: FunctionalModule(Scaled()).draw(0), r"must have reset_parameters\(\)"),
}


@pytest.mark.parametrize("case", BAD_REPLICAS)
def test_other_changes_than_those_of_replicas_are_refused(case):
    make, sentence = BAD_REPLICAS[case]
    with pytest.raises(ValueError, match=sentence):
        make()
