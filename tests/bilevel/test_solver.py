"""Tests of the solver: its results, its errors, and its messages about values that are not finite."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from calibrant.bilevel import (
    SGD,
    Adam,
    Bilevel,
    Callback,
    EarlyStopping,
    GroupedOptimizer,
    History,
    InitialPoint,
    NonFiniteError,
    OneStep,
    OuterVariable,
    OuterVariables,
    Plain,
    Population,
    SampleWeights,
    Truncated,
    Unrolled,
    composed,
    solve,
)
from calibrant.data import Indexed, TensorStream
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, hidden_dropout, mlp, problem, rich_mlp, run


class Spy(Callback):
    """Records the run after each step."""

    def __init__(self):
        self.phi, self.gradient, self.params = [], [], []

    def on_step(self, run):
        self.phi.append(run.phi)
        self.gradient.append(run.gradient)
        self.params.append(run.state.params)


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (Adam(0.01, weight_decay=0.01), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.01)),
    ],
)
def test_plain_is_an_ordinary_training_loop(ours, theirs):
    x, y = blobs()
    layers = [nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)]
    reference = nn.Sequential(*layers).double()
    solution = solve(Bilevel(reference, train=(x, y)), hypergradient=Plain(20), inner_optimizer=ours, outer_steps=10)
    optimizer = theirs(reference.parameters())
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        optimizer.step()
    assert torch.allclose(solution.params, flat(reference), rtol=0, atol=1e-8)
    for name, buffer in reference.named_buffers():
        assert torch.allclose(solution.buffers[name].double(), buffer.double(), rtol=0, atol=1e-8)
    assert solution.reasons == {0: "all outer steps done"}


def test_plain_mini_batches_pass_over_all_samples():
    x, y = blobs()
    seen = []

    def loss(net, outer, batch):
        seen.append(batch.index)
        return F.cross_entropy(net(batch.inputs), batch.targets)

    case = Bilevel(mlp(), train=(x, y), batch_size=6, inner_loss=loss)
    seen.clear()
    solve(case, hypergradient=Plain(8), inner_optimizer=SGD(0.1), outer_steps=1)
    first, second = torch.cat(seen[:4]), torch.cat(seen[4:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(SAMPLES))
    assert not torch.equal(first, second)


def test_training_is_carried_over_or_restarted():
    settings = {"hypergradient": Plain(5), "inner_optimizer": Adam(0.02)}
    longer = solve(problem(), outer_steps=3, **settings)
    whole = solve(problem(), hypergradient=Plain(15), inner_optimizer=Adam(0.02), outer_steps=1)
    assert torch.equal(longer.params, whole.params)
    restarted = solve(problem(), outer_steps=3, restart=True, **settings)
    short = solve(problem(), outer_steps=1, **settings)
    assert torch.equal(restarted.params, short.params)  # full batch: each of the three trainings is the same


def test_a_problem_with_loaders_can_be_solved_again():
    def member(seed):
        train, val = TensorDataset(*blobs(seed)), TensorDataset(*blobs(seed + 100))
        loaders = {
            "train": DataLoader(Indexed(train), batch_size=8, shuffle=True),
            "val": DataLoader(val, batch_size=5, shuffle=True),
        }
        return problem(mlp(seed), seed=seed, **loaders)

    members = [member(0), member(1)]
    first, second = ([run(case) for case in members] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.params, b.params)
        assert torch.equal(a.phi, b.phi)
    population = Population(members)
    together, again = run(population), run(population)
    assert torch.equal(together.phi, again.phi)
    for position, alone in enumerate(first):
        assert torch.allclose(together.phi[position], alone.phi, rtol=0, atol=1e-10)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(2, 6), nn.Dropout(0.3), nn.Linear(6, CLASSES)

    def forward(self, left, *, right):
        return self.last(self.drop(torch.tanh(self.first(left) - self.first(right))))


class Pairs(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x, y = blobs()
        return {"left": x[index], "right": 0.5 * x[index]}, y[index]


def pairs_loss(net, outer, batch):
    logits = net(batch.inputs["left"], right=batch.inputs["right"])
    return outer.weigh(F.cross_entropy(logits, batch.targets, reduction="none"), batch)


def two_calls(net, outer, batch):
    """A consistency term on part of the batch: a second call of another size, with other masks."""
    losses = F.cross_entropy(net(batch.inputs), batch.targets, reduction="none")
    return outer.weigh(losses, batch).mean() + 0.1 * net(batch.inputs[:7]).square().mean()


def pairs_case():
    torch.manual_seed(0)
    train, val = (DataLoader(Indexed(Pairs()), batch_size=n) for n in (10, 20))
    return problem(TwoInputs().double(), train=train, val=val, inner_loss=pairs_loss, outer_loss=pairs_loss)


@pytest.mark.parametrize(
    "make",
    [
        pairs_case,
        lambda: problem(rich_mlp(), inner_loss=two_calls),
        lambda: problem(rich_mlp(), inner_loss=two_calls, outer_mode="train"),
    ],
    ids=["several inputs", "several calls", "several calls inside, one outside"],
)
def test_losses_may_call_a_network_with_dropout_as_they_like(make):
    kept = run(make(), hypergradient=Unrolled(4, memory="graphs"))
    recomputed = run(make(), hypergradient=Unrolled(4, memory="checkpoints"))
    traced = run(make(), compile="trace")
    for other in (recomputed, traced):
        assert torch.allclose(kept.phi, other.phi, rtol=0, atol=1e-10)
        assert torch.allclose(kept.params, other.params, rtol=0, atol=1e-10)
    assert kept.phi.std() > 0


def test_each_call_of_a_network_has_masks_of_its_own():
    seen = []

    def loss(net, outer, batch):
        seen.append([net(batch.inputs), net(batch.inputs)])
        return outer.weigh(F.cross_entropy(seen[-1][0] + seen[-1][1], batch.targets, reduction="none"), batch)

    model = nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.5), nn.Linear(6, CLASSES)).double()
    case = problem(model, inner_loss=loss)
    point = case.view.initial(), {}, case.initial_phi()
    for step in (3, 3, 4):
        case.inner(*point, case.train_batch(step))
    first, again, other = seen[-3:]
    assert not torch.equal(first[0], first[1])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_restart_goes_on_with_the_data():
    settings = {"hypergradient": Plain(2), "inner_optimizer": SGD(0.1), "restart": True}
    spy = Spy()
    solve(problem(batch_size=5), outer_steps=2, callbacks=[spy], **settings)
    assert not torch.equal(spy.params[0], spy.params[1])


def test_descent_lowers_the_outer_loss_and_projects():
    x, y = blobs(samples=60)
    noisy = torch.where(torch.arange(60) % 3 == 0, (y + 1) % CLASSES, y)
    case = Bilevel(mlp(), SampleWeights(60, initial_weight=0.5), train=(x, noisy), val=blobs(7, 60))
    spy, history = Spy(), History()
    solution = solve(
        case,
        hypergradient=Unrolled(20),
        inner_optimizer=Adam(0.05),
        outer_optimizer=SGD(20.0),
        outer_steps=30,
        restart=True,
        callbacks=[spy, history],
    )
    for phi in spy.phi:
        assert phi.min() >= 0
        assert phi.max() <= 1
    weights = solution.outer_variables()["raw"]
    assert (weights == 0).any()
    assert (weights == 1).any()
    assert history["outer_loss"][-1] < history["outer_loss"][0] - 0.02
    wrong = torch.arange(60) % 3 == 0
    assert weights[wrong].mean() < weights[~wrong].mean() - 0.1


def test_projection_reaches_each_part_of_several_variables():
    parts = OuterVariables(SampleWeights(SAMPLES, initial_weight=0.5), SampleWeights(SAMPLES, form="sigmoid"))
    solution = run(problem(outer=parts), outer_optimizer=SGD(1e4))
    values = solution.outer_variables()
    assert values["parts.0.raw"].min() >= 0
    assert values["parts.0.raw"].max() <= 1
    assert values["parts.1.raw"].abs().max() > 1


def test_other_outer_modules_keep_their_attributes():
    class Scores(nn.Module):
        needs_index = True  # means something else to its author

        def __init__(self):
            super().__init__()
            self.project = nn.Linear(2, 1)

        def forward(self, inputs):
            return torch.sigmoid(self.project(inputs)).squeeze(-1)

    def loss(net, outer, batch):
        return outer(batch.inputs) * F.cross_entropy(net(batch.inputs), batch.targets, reduction="none")

    case = problem(outer=Scores(), inner_loss=loss, train=[blobs()])
    assert case.train_batch(0).index is None
    solution = run(case)
    assert not torch.equal(solution.phi, case.initial_phi())


def test_clip_norm_shortens_long_hypergradients_only():
    free, clipped, idle = Spy(), Spy(), Spy()
    run(problem(), outer_steps=1, callbacks=[free])
    norm = free.gradient[0].norm().item()
    run(problem(), outer_steps=1, callbacks=[clipped], clip_norm=norm / 10)
    run(problem(), outer_steps=1, callbacks=[idle], clip_norm=norm * 10)
    assert clipped.gradient[0].norm().item() == pytest.approx(norm / 10, rel=1e-12)
    assert torch.allclose(clipped.gradient[0] * 10, free.gradient[0], rtol=1e-12)
    assert torch.equal(idle.gradient[0], free.gradient[0])


def test_no_outer_steps_leave_everything_as_it_was():
    case = problem(rich_mlp())
    solution = run(case, outer_steps=0, callbacks=[EarlyStopping(), History()])
    assert torch.equal(solution.params, case.view.initial())
    assert torch.equal(solution.phi, case.initial_phi())
    assert solution.outer_steps == 0
    assert solution.reasons == {0: "all outer steps done"}


MISUSES = {
    "no outer variables": (
        lambda: run(Bilevel(mlp(), train=blobs(), val=blobs())),
        "no outer variables",
    ),
    "no validation data": (lambda: run(problem(val=None)), "needs validation data"),
    "no outer optimiser": (lambda: run(problem(), outer_optimizer=None), "outer_optimizer must be given"),
    "initial point, carried over": (lambda: run(problem(outer=InitialPoint(mlp()))), "restart must be True"),
    "initial point out of sight of a window": (
        lambda: run(problem(outer=InitialPoint(mlp())), hypergradient=Truncated(4, 2), restart=True),
        r"Truncated\(.*does not differentiate through the starting point",
    ),
    "initial point out of sight of a look-ahead": (
        lambda: run(problem(outer=InitialPoint(mlp())), hypergradient=OneStep(), restart=True),
        "does not differentiate through the starting point",
    ),
    "steps per member of one problem": (lambda: run(problem(), outer_steps=torch.tensor([3])), "one per member"),
    "negative steps": (lambda: run(problem(), outer_steps=-1), "outer_steps must be at least 0"),
    "rates per member of one problem": (
        lambda: run(problem(), inner_optimizer=SGD(torch.tensor([0.1, 0.2]))),
        "inner learning rate",
    ),
    "clip_norm of zero": (lambda: run(problem(), clip_norm=0.0), "clip_norm must be positive"),
    "unknown compiler": (lambda: run(problem(), compile="fast"), "'trace' or 'inductor'"),
    "module without a loss": (lambda: problem(outer=nn.Linear(2, 1)), "inner_loss must be given"),
    "inner loss of wrong shape": (
        lambda: problem(inner_loss=lambda net, outer, batch: net(batch.inputs)),
        r"inner loss must be one value.*\(20, 3\)",
    ),
    "inner loss that is a float": (lambda: problem(inner_loss=lambda net, outer, batch: 1.0), "inner loss.*float"),
    "outer loss of wrong shape": (
        lambda: run(problem(outer_loss=lambda net, outer, batch: net(batch.inputs))),
        "outer loss must be one value",
    ),
    "outer loss of nothing": (
        lambda: run(problem(outer_loss=lambda net, outer, batch: batch.inputs.mean())),
        "must depend on the network or on the outer variables",
    ),
    "weights of a reduced loss": (
        lambda: problem(inner_loss=composed(F.cross_entropy)),
        "SampleWeights needs one loss per sample",
    ),
    "early stopping at no step": (lambda: EarlyStopping(every=0), "every must be at least 1"),
    "outer variables at no step": (lambda: History(phi_every=0), "phi_every must be at least 1"),
    "unknown mode": (lambda: problem(outer_mode="test"), "'eval' or 'train'"),
    "nothing to train": (lambda: problem(mlp().requires_grad_(False)), "must have trainable parameters"),
    "rows that do not match": (lambda: problem(train=(blobs()[0], blobs()[1][:5])), "the same samples"),
    "last beyond steps": (lambda: Truncated(3, 4), "between 1 and steps=3"),
    "unknown memory": (lambda: Unrolled(3, memory="all"), "memory must be"),
    "no steps": (lambda: Plain(0), "steps must be at least 1"),
    "member of one problem": (lambda: run(problem(), outer_steps=0).member(0), "solution of a Population"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_misuse_is_answered_by_a_sentence(case):
    misuse, sentence = MISUSES[case]
    with pytest.raises(ValueError, match=sentence):
        misuse()


def test_a_hypergradient_must_be_a_value():
    with pytest.raises(TypeError, match="Unrolled"):
        run(problem(), hypergradient="unrolled")


def test_an_optimiser_without_a_derivative_says_so():
    size = problem().view.size
    with pytest.raises(
        NotImplementedError, match=r"GroupedOptimizer has no derivative of its update.*SGD, Adam or AdamW"
    ):
        run(problem(), inner_optimizer=GroupedOptimizer(parts=((size, SGD(0.1)),)))


def test_an_optimiser_must_be_a_value():
    theirs = torch.optim.SGD(mlp().parameters(), 0.1)
    with pytest.raises(TypeError, match=r"inner optimiser.*torch\.optim"):
        run(problem(), inner_optimizer=theirs)
    with pytest.raises(TypeError, match="outer optimiser"):
        run(problem(), outer_optimizer=theirs)


class Temperature(nn.Module):
    """A module as φ: one number by which the inner loss divides the logits."""

    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))

    def forward(self, logits):
        return logits * self.log.exp()


def test_a_module_of_ones_own_learns():
    def inner(net, outer, batch):
        return F.cross_entropy(outer(net(batch.inputs)), batch.targets, reduction="none")

    case = problem(outer=Temperature(), inner_loss=inner)
    history = History(phi_every=1)
    settings = {"hypergradient": Unrolled(10), "outer_optimizer": Adam(0.1), "outer_steps": 20, "restart": True}
    solution = run(case, callbacks=[history], **settings)
    assert solution.outer_variables()["log"].shape == ()
    assert history["outer_loss"][-1] < history["outer_loss"][0] - 1e-3
    assert history["phi"].shape == (21, 1)


def test_the_users_modules_are_left_alone():
    model, outer = rich_mlp(), SampleWeights(SAMPLES)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    run(problem(model, outer=outer))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(outer.raw, torch.ones(SAMPLES))
    assert isinstance(model[3], nn.Dropout)


def test_an_exploding_inner_loss_names_step_and_level():
    x, y = blobs(dtype=torch.float32)
    case = Bilevel(mlp(dtype=torch.float32), SampleWeights(SAMPLES), train=(x, y), val=(x, y))
    with pytest.raises(NonFiniteError, match=r"inner.*outer step \d+.*smaller inner learning rate"):
        run(case, inner_optimizer=SGD(1e38, momentum=0.9), outer_steps=50)
    history = History()
    x[3] = float("nan")
    case = problem(mlp(dtype=torch.float32), train=(x, y), batch_size=1)
    with pytest.raises(NonFiniteError, match=r"inner loss.*inner step (\d+) \(outer step (\d+)\)") as error:
        run(case, callbacks=[history], outer_steps=50)
    inner, outer = (int(number) for number in re.findall(r"step (\d+)", str(error.value)))
    bad = next(k for k in range(50) if int(case.train_batch(k).index) == 3)
    assert inner == bad + 1
    assert outer == math.ceil(inner / 4) == len(history["inner_loss"]) + 1


@pytest.mark.parametrize(
    "hypergradient", [Unrolled(3), Truncated(3, 1), OneStep(3)], ids=["unrolled", "truncated", "one step"]
)
def test_bad_validation_data_is_blamed_on_the_outer_level(hypergradient):
    x, y = blobs(100)
    x[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"outer loss was not finite at outer step 1.*validation"):
        run(problem(val=(x, y)), hypergradient=hypergradient)


@pytest.mark.parametrize("hypergradient", [Plain(1), OneStep(1, learning_rate=0.1)], ids=["plain", "one step"])
def test_parameters_that_overflow_in_the_last_step_are_not_returned(hypergradient):
    with pytest.raises(NonFiniteError, match=r"inner parameter vector.*outer step 1.*smaller inner learning rate"):
        run(problem(), hypergradient=hypergradient, inner_optimizer=SGD(lambda step: float("inf")), outer_steps=1)


def test_outer_variables_that_overflow_are_not_returned():
    class Free(OuterVariable):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(SAMPLES))

        def weigh(self, losses, batch):
            return losses * self.w

    with pytest.raises(NonFiniteError, match=r"outer variables.*smaller outer learning rate"):
        run(problem(outer=Free()), outer_optimizer=SGD(lambda step: float("inf")), outer_steps=1)


def test_errors_end_callbacks_too():
    ended = []

    class Ends(Callback):
        def on_end(self, run):
            ended.append(run.step)

    x, y = blobs()
    with pytest.raises(NonFiniteError):
        run(problem(train=(x * float("nan"), y)), callbacks=[Ends()])
    assert ended == [0]


@pytest.mark.parametrize("memory", ["graphs", "states", "checkpoints"])
def test_dead_units_under_adam_give_finite_hypergradients(memory):
    model = mlp(activation=nn.ReLU)
    with torch.no_grad():
        model[0].bias[:3] = -100.0  # three units that never fire: gradients of exactly zero
    spy = Spy()
    run(problem(model), hypergradient=Unrolled(5, memory=memory), callbacks=[spy])
    assert all(bool(g.isfinite().all()) for g in spy.gradient)
    assert all(g.norm() > 0 for g in spy.gradient)


def test_autocast_stays_close_to_full_precision():
    exact = run(problem(mlp(dtype=torch.float32)), outer_optimizer=SGD(1.0))
    low = run(problem(mlp(dtype=torch.float32), autocast=torch.bfloat16), outer_optimizer=SGD(1.0))
    assert low.params.dtype == low.phi.dtype == torch.float32
    assert not torch.equal(low.params, exact.params)
    assert (low.params - exact.params).norm() < 0.05 * exact.params.norm()
    moved = exact.phi - 0.7
    assert (low.phi - exact.phi).norm() < 0.3 * moved.norm()


def test_both_precisions_agree():
    single = run(problem(mlp(dtype=torch.float32)), inner_optimizer=SGD(0.1, momentum=0.9))
    double = run(problem(mlp(dtype=torch.float64)), inner_optimizer=SGD(0.1, momentum=0.9))
    assert single.params.dtype == single.phi.dtype == torch.float32
    assert double.params.dtype == double.phi.dtype == torch.float64
    assert torch.allclose(single.params.double(), double.params, atol=1e-5)
    assert torch.allclose(single.phi.double(), double.phi, atol=1e-4)


def test_predictions_take_what_training_takes():
    solution = run(problem(mlp(dtype=torch.float32)))
    x = blobs()[0]
    expected = solution.logits(x.float())
    assert torch.equal(solution.logits(x), expected)
    assert torch.equal(solution.logits(x.numpy()), expected)


def test_predictions_of_many_rows_are_made_in_pieces():
    solution = run(problem(rich_mlp()))
    x, _ = blobs(8)
    whole = solution.logits(x, rows=None)
    sizes = []
    handle = solution.problem.view.module.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    assert torch.allclose(solution.logits(x, rows=6), whole, rtol=0, atol=1e-12)
    assert sizes == [6, 6, 6, 2]
    handle.remove()
    assert torch.equal(solution.logits(x, rows=SAMPLES), whole)


def test_frozen_parameters_do_not_move():
    model = mlp()
    model[0].requires_grad_(False)
    case = problem(model)
    solution = run(case)
    exported = solution.export(mlp())
    assert case.view.names == ["2.weight", "2.bias"]
    assert torch.equal(exported[0].weight, mlp()[0].weight)
    assert not torch.equal(exported[2].weight, mlp()[2].weight)


@pytest.mark.parametrize("make", [mlp, rich_mlp, hidden_dropout])
def test_export_predicts_as_the_solution_does(make):
    solution = run(problem(make(), batch_size=8))
    x, _ = blobs(5)
    module = solution.export(make(seed=9)).eval()
    with torch.no_grad():
        assert torch.allclose(module(x), solution.logits(x), rtol=0, atol=1e-12)
    assert not solution.logits(x).requires_grad


def jitter(inputs, generator):
    return inputs + 0.1 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


@pytest.mark.parametrize("make", [rich_mlp, hidden_dropout])
@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.02)], ids=["momentum", "adam"])
def test_the_sweep_replays_batches_masks_augmentation_and_statistics(make, optimizer):
    ends = []
    for memory in ("graphs", "states", "checkpoints"):
        stream = TensorStream(*blobs(), batch_size=7, augment=jitter, seed=3)
        case = problem(make(), train=stream)
        torch.manual_seed(len(ends))  # the global generator must not matter
        ends.append(run(case, hypergradient=Unrolled(7, memory=memory), inner_optimizer=optimizer))
    kept, states, checkpoints = ends
    assert not torch.equal(kept.phi, case.initial_phi())
    for lean in (states, checkpoints):
        assert torch.equal(lean.params, kept.params)
        assert torch.equal(lean.phi, kept.phi)
        assert all(torch.equal(b, kept.buffers[k]) for k, b in lean.buffers.items())


def test_the_global_generator_is_left_as_it_was():
    case = problem(hidden_dropout(), batch_size=7)
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    run(case)
    run(case, compile="trace")
    assert torch.equal(torch.rand(3), expected)


class Attending(nn.Module):
    """A transformer layer, which uses fused attention kernels."""

    def __init__(self, dropout):
        super().__init__()
        self.embed, self.last = nn.Linear(1, 4), nn.Linear(8, CLASSES)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=True)

    def forward(self, x):
        return self.last(self.layer(self.embed(x.unsqueeze(-1))).flatten(1))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_transformers_can_be_differentiated_twice(dropout):
    ends = []
    for memory in ("graphs", "checkpoints"):
        torch.manual_seed(0)
        case = problem(Attending(dropout).double(), batch_size=7)
        ends.append(run(case, hypergradient=Unrolled(3, memory=memory), outer_steps=2))
    assert torch.equal(ends[0].phi, ends[1].phi)
    assert not torch.equal(ends[0].phi, case.initial_phi())
