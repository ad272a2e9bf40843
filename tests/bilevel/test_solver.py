"""Tests of the solver: its results, its errors, and its messages about values that are not finite."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    SGD,
    Adam,
    Bilevel,
    EarlyStopping,
    History,
    Plain,
    Population,
    SampleWeights,
    Unrolled,
    solve,
)
from calibrant.data import Indexed
from tests.bilevel.cases import OUTERS, TRAIN, make_problem
from tests.bilevel.loop_cases import CLASSES, SAMPLES, Spy, blobs, hidden_dropout, mlp, problem, rich_mlp, run


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


class Checkpointed(nn.Module):
    """Gradient checkpointing in one of torch's two forms, beside layers that change in each training pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.last, self.reentrant = nn.Linear(4, CLASSES), reentrant

    def forward(self, x):
        hidden = checkpoint(torch.tanh, self.first(x), use_reentrant=self.reentrant)
        return self.last(self.drop(self.norm(hidden)))


@pytest.mark.parametrize("compile", [None, "graphs"])
def test_both_forms_of_gradient_checkpointing_train_alike(compile):
    def trained(reentrant):
        torch.manual_seed(0)
        case = Bilevel(Checkpointed(reentrant).double(), train=blobs())
        return solve(case, hypergradient=Plain(2), inner_optimizer=Adam(0.02), outer_steps=3, compile=compile)

    old, new = trained(True), trained(False)
    assert torch.equal(old.params, new.params)
    assert all(torch.equal(old.buffers[name], value) for name, value in new.buffers.items())


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


def test_other_outer_modules_keep_their_attributes():
    class Scores(nn.Module):
        needs_index = True  # means something else to its author

        def __init__(self):
            super().__init__()
            self.project = self.prior = nn.Linear(2, 1)

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


def test_the_users_modules_are_left_alone():
    model, outer = rich_mlp(), SampleWeights(SAMPLES)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    run(problem(model, outer=outer))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(outer.raw, torch.ones(SAMPLES))
    assert isinstance(model[3], nn.Dropout)


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


def test_probabilities_of_a_solution_are_the_softmax_of_its_logits():
    solution = run(problem())
    inputs = blobs()[0]
    probs = solution.probs(inputs)
    assert torch.allclose(probs.sum(1), torch.ones(len(inputs), dtype=probs.dtype))
    assert torch.equal(probs, solution.logits(inputs).softmax(1))


@pytest.mark.parametrize("outer", OUTERS)
def test_a_solution_tells_what_its_outer_variables_stand_for(outer):
    case = make_problem(outer)
    settings = {"inner_optimizer": SGD(0.1), "outer_optimizer": SGD(0.5), "restart": True, "outer_steps": 2}
    solution = solve(case, hypergradient=Unrolled(2), **settings)
    found, raw = solution.outer_quantities(), solution.outer_variables()
    if "weights" in found:
        assert found["weights"].shape == (TRAIN,)
        assert ((found["weights"] >= 0) & (found["weights"] <= 1)).all()
    expected = {
        "weights, clipped": lambda: {"weights": raw["raw"]},
        "weights, sigmoid, prior": lambda: {"weights": raw["raw"].sigmoid()},
        "L2 per layer": lambda: {"coefficients": raw["log"].exp()},
        "smoothing per sample": lambda: {"smoothing": raw["raw"].sigmoid()},
        "noise per class": lambda: {"rate": 0.95 * raw["raw"].sigmoid()},
        "initial point": lambda: raw,
        "user module": lambda: raw,
        "weights and L2": lambda: {
            "parts.0.weights": raw["parts.0.raw"],
            "parts.1.coefficients": raw["parts.1.log"].exp(),
        },
    }.get(outer, lambda: found)()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert not any(value.requires_grad for value in found.values())


def test_a_population_tells_what_its_members_outer_variables_stand_for():
    first = make_problem("weights, sigmoid, prior")
    population = Population([first, first.replicate(seed=1)])
    settings = {"inner_optimizer": SGD(0.1), "outer_optimizer": SGD(0.5), "outer_steps": 1}
    solution = solve(population, hypergradient=Unrolled(2), **settings)
    with pytest.raises(ValueError, match=r"solution\.member"):
        solution.outer_quantities()
    weights = solution.member(1).outer_quantities()["weights"]
    assert torch.equal(weights, solution.outer_variables()["raw"][1].sigmoid())
