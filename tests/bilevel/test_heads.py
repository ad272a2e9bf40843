"""Tests of hypergradients of the head: one look-ahead step, and the head solved on recent features."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from calibrant.bilevel import (
    CG,
    L2,
    SGD,
    Adam,
    Bilevel,
    Direct,
    History,
    Implicit,
    LogitMap,
    OneStep,
    Plain,
    Population,
    SampleWeights,
    Truncated,
    solve,
)
from calibrant.bilevel.compiled import Replay
from calibrant.bilevel.gradients.dynamics import Dynamics
from calibrant.bilevel.gradients.head import FeatureMemory
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.bilevel.running.run import Run
from calibrant.bilevel.variables.logits import BehindMap
from calibrant.data.streams.batch import Batch
from calibrant.losses import cross_entropy, focal
from tests.bilevel.differences import central_differences

TRAIN, VAL, CLASSES = 24, 15, 3


class Net(nn.Module):
    """A head that is declared first, over convolutions and a norm."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, CLASSES)
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return self.fc(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))


class Gamma(nn.Module):
    """A focal γ for each sample from its features."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, features):
        return nn.functional.softplus(self.layer(features)).squeeze(1)


def gamma_loss(net, outer, batch):
    features = net.features(batch.inputs)
    return focal(net.head(features), batch.targets, outer(features.detach()))


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TRAIN + VAL, 2, 5, 5, dtype=torch.float64, generator=generator)
    y = torch.randint(0, CLASSES, (TRAIN + VAL,), generator=generator)
    return {"train": (x[:TRAIN], y[:TRAIN]), "val": (x[TRAIN:], y[TRAIN:])}


def problem(outer="gamma", seed=0, **settings):
    torch.manual_seed(seed)
    model = Net().double()
    torch.manual_seed(seed + 100)
    variables = {"gamma": Gamma, "weights": lambda: SampleWeights(TRAIN, initial_weight=0.8), "l2": lambda: L2(model)}
    settings = {"batch_size": 8, "val_batch_size": 5, "seed": seed, **settings}
    if outer == "gamma":
        settings["inner_loss"] = gamma_loss
    return Bilevel(model, variables[outer](), **data(seed), **settings)


def steps(one, hypergradient, count=3, inner=None, in_place=True):
    run = Run(one, hypergradient, inner or SGD(0.3, momentum=0.9, weight_decay=0.01), Adam(0.05), count)
    if not in_place:
        run.dynamics, run.head.trainer = Dynamics(run.dynamics.derivatives, run.dynamics.optimizer), None
    for _ in range(count):
        outer_step(run)
    return run


OUTERS = ("gamma", "weights", "l2")
INNERS = {
    "momentum": SGD(0.3, momentum=0.9, weight_decay=0.01),
    "adam, spared": Adam(0.02, weight_decay=0.01, decay_on="weights"),
}


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("first", ["outer", "inner"])
@pytest.mark.parametrize("outer", OUTERS)
def test_sharing_the_body_changes_no_number(outer, first, inner):
    hypergradient = OneStep(2, scope="head", first=first)
    shared = problem(outer)
    one, two = (steps(shared, hypergradient, inner=INNERS[inner], in_place=way) for way in (True, False))
    torch.testing.assert_close(one.phi, two.phi, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(one.state.params, two.state.params, rtol=1e-10, atol=1e-11)
    for name, buffer in one.state.buffers.items():
        torch.testing.assert_close(buffer, two.state.buffers[name], rtol=1e-10, atol=1e-11)
    assert not torch.equal(one.phi, shared.initial_phi())


def gradient(one, hypergradient, phi, state=None, features=None, batch=0):
    """The hypergradient at φ from a given state, and the run that computed it."""
    run = Run(one, hypergradient, SGD(0.3, momentum=0.9, weight_decay=0.01), Adam(0.05), 10)
    run.phi = phi
    if state is not None:
        run.state = state
    outer_step(run)
    return run


def test_one_step_of_the_head_agrees_with_finite_differences():
    one, optimizer = problem(), SGD(0.3, momentum=0.9, weight_decay=0.01)
    phi, at = one.initial_phi(), one.head_slice

    def ahead(phi):
        """F after a step of the head alone."""
        params = one.start.clone().requires_grad_()
        loss, buffers = one.inner(params, one.initial_buffers(), phi, one.train_batch(0))
        (grad,) = torch.autograd.grad(loss, params)
        moved, _ = optimizer.update(params.detach(), optimizer.init(params.detach()), grad, 1)
        params = one.start.clone()
        params[at] = moved[at]
        return one.outer(params, buffers, phi, one.val_batch(0))[0].detach()

    found = gradient(one, OneStep(scope="head"), phi).gradient
    along, slopes = central_differences(ahead, phi)
    torch.testing.assert_close(along @ found, slopes, rtol=1e-6, atol=1e-9)


def test_the_solved_head_agrees_with_finite_differences():
    """The map: the head's minimiser on the features of the last batches. It is solved to 1e-12 here, by Newton."""
    one, decay = problem(), 0.01
    run = Run(
        one,
        Implicit(5, scope="head", solve=CG(200, 1e-14), damping=0.0, batches=3),
        SGD(0.3, momentum=0.9, weight_decay=decay),
        Adam(0.05),
        10,
    )
    run.phi = one.initial_phi()
    phi = run.phi
    run.state, _ = run.hypergradient.train(_view(run), run.state, phi, 5)  # features of the last three batches
    batch, features = run.head.memory.joined()
    assert len(batch.targets) == 3 * 8

    of_features = run.head.inner(run.state, features).fn

    def solution(phi):
        w = run.state.params[one.head_slice].clone()
        for _ in range(60):
            w.requires_grad_()
            value = of_features(w, {}, phi, batch)[0] + decay / 2 * w.square().sum()
            (grad,) = torch.autograd.grad(value, w, create_graph=True)
            hessian = torch.stack([torch.autograd.grad(g, w, retain_graph=True)[0] for g in grad])
            move = torch.linalg.solve(hessian, grad.detach())
            w = (w - min(1.0, 1.0 / float(move.norm())) * move).detach()
        assert float(grad.detach().norm()) < 1e-12
        return w

    def outer(phi):
        params = run.state.params.clone()
        params[one.head_slice] = solution(phi)
        return one.outer(params, run.state.buffers, phi, one.val_batch(0))[0].detach()

    run.state.params[one.head_slice] = solution(phi)
    run.state = run.state._replace(params=run.state.params.clone())
    estimate = run.hypergradient._of_head(_view(run), run.state, [], phi)
    along, slopes = central_differences(outer, phi)
    torch.testing.assert_close(along @ estimate.gradient, slopes, rtol=1e-6, atol=1e-9)


def _view(run):
    from calibrant.bilevel.gradients import hypergradients as hg

    p = run.problem
    return hg.HypergradientInput(run.dynamics, run.outer_derivatives, p.train_batch, p.val_batch(0), run.head)


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_the_body_runs_once_for_look_ahead_and_step(first):
    one = problem()
    run = Run(one, OneStep(3, scope="head", first=first), SGD(0.1), Adam(0.05), 1)
    _ = one.head
    counts = {"train": 0, "eval": 0}
    module = run.dynamics.module
    module.conv.register_forward_hook(lambda m, a, o: counts.__setitem__(key(m), counts[key(m)] + 1))
    outer_step(run)
    assert counts == {"train": 3, "eval": 1}


def key(module):
    return "train" if module.training else "eval"


@pytest.mark.parametrize("scope", ["all", "head"])
@pytest.mark.parametrize("inner", INNERS)
def test_a_look_ahead_rate_goes_with_any_optimiser(inner, scope):
    run = steps(problem("weights"), OneStep(2, scope=scope, learning_rate=0.1), inner=INNERS[inner])
    assert len(run.state.moments) == len(INNERS[inner].init(run.state.params))
    assert run.state.step == 6


def test_training_first_differentiates_the_last_step():
    one, two = (steps(problem("weights"), h) for h in (OneStep(3, first="inner"), Truncated(3, 1)))
    torch.testing.assert_close(one.phi, two.phi, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(one.state.params, two.state.params, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("hypergradient", [OneStep(2, scope="head"), Implicit(2, scope="head", batches=3)], ids=repr)
@pytest.mark.parametrize("outer", ["gamma", "weights"])
def test_members_of_a_population_equal_their_single_runs(hypergradient, outer):
    template = problem(outer)
    members = [template, template.replicate(Net().double(), **data(1), seed=1)]
    together = steps(Population(members), hypergradient)
    for k, member in enumerate(members):
        alone = steps(member, hypergradient)
        torch.testing.assert_close(together.phi[k], alone.phi, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(together.state.params[k], alone.state.params, rtol=1e-9, atol=1e-11)


def test_phi_waits_for_its_share_of_the_run():
    one, history = problem(), History(phi_every=1)
    settings = {"inner_optimizer": SGD(0.1), "outer_optimizer": Adam(0.05), "hypergradient": OneStep(2, scope="head")}
    solve(one, outer_steps=10, start=0.35, callbacks=[history], **settings)
    assert [torch.equal(phi, one.initial_phi()) for phi in history["phi"]] == [True] * 5 + [False] * 6
    plain = solve(problem(), outer_steps=4, hypergradient=Plain(2), inner_optimizer=SGD(0.1))
    waited = solve(problem(), outer_steps=4, start=0.99, **settings)
    assert torch.equal(plain.params, waited.params)
    with pytest.raises(ValueError, match="start must be a share"):
        solve(one, outer_steps=4, start=1.0, **settings)


def shifted(net, outer, batch):
    return cross_entropy(net.logits(batch.inputs * (1 + outer.layer.weight.sum())), batch.targets)


def called_twice(net, outer, batch):
    return focal(net.logits(batch.inputs), batch.targets, outer(net.features(batch.inputs).detach()))


@pytest.mark.parametrize(
    "loss", [shifted, called_twice, lambda net, outer, batch: net.params["fc.bias"].square().sum()]
)
@pytest.mark.parametrize("hypergradient", [OneStep(scope="head"), Implicit(scope="head")], ids=repr)
def test_losses_that_are_no_function_of_features_are_refused(hypergradient, loss):
    torch.manual_seed(0)
    one = Bilevel(Net().double(), Gamma(), inner_loss=loss, **data())
    with pytest.raises(ValueError, match=r"uses the network once, through its features.*scope='all'"):
        steps(one, hypergradient, 1)


def test_training_in_place_is_training():
    """The working copy against the map's own steps: the same network, the same statistics."""
    one = problem("weights")
    run = Run(one, Plain(7), INNERS["adam, spared"], None, 1)
    outer_step(run)
    dynamics = Dynamics(run.dynamics.derivatives, run.dynamics.optimizer)
    state, losses = dynamics.train(run.fresh_state(), one.initial_phi(), one.train_batch, 7)
    torch.testing.assert_close(run.state.params, state.params, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(run.inner_losses, torch.stack(losses), rtol=1e-11, atol=1e-12)
    for name, buffer in state.buffers.items():
        torch.testing.assert_close(run.state.buffers[name], buffer, rtol=1e-11, atol=1e-12)


def test_states_are_values_that_later_steps_leave_alone():
    run = Run(problem("weights"), Plain(2), SGD(0.1, momentum=0.9), None, 3)
    outer_step(run)
    kept, copied = run.state, run.state.map(torch.clone)
    outer_step(run)
    assert torch.equal(kept.params, copied.params)
    assert all(torch.equal(a, b) for a, b in zip(kept.moments, copied.moments, strict=True))
    assert all(torch.equal(b, copied.buffers[k]) for k, b in kept.buffers.items())
    run.state, run.step = kept, 1
    again = Run(problem("weights"), Plain(2), SGD(0.1, momentum=0.9), None, 3)
    outer_step(run)
    for _ in range(2):
        outer_step(again)
    assert torch.equal(run.state.params, again.state.params)


def test_channels_last_changes_the_order_of_storage_only():
    one, two = problem("l2"), problem("l2", channels_last=True)
    assert torch.equal(two.view.flatten(two.view.unflatten(two.start)), two.start)
    assert not torch.equal(one.start, two.start)
    for hypergradient in (Plain(3), Truncated(3, 2), OneStep(scope="head")):
        a, b = (steps(p, hypergradient, 2) for p in (one, two))
        for name, value in one.view.unflatten(a.state.params).items():
            torch.testing.assert_close(two.view.unflatten(b.state.params)[name], value, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.phi, b.phi, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize(
    "hypergradient",
    [
        Plain(2),
        OneStep(2, scope="head"),
        OneStep(2, scope="head", first="inner"),
        OneStep(2),
        Implicit(2, scope="head", batches=3),
        Implicit(2, scope="head", batches=3, first="outer"),
        Truncated(2, 1),
    ],
    ids=repr,
)
def test_steps_in_fixed_memory_are_the_same_steps(hypergradient, inner):
    """The steps that a GPU records, here without recording: fixed memory, with rates and step numbers as tensors."""
    schedule = INNERS[inner].__class__(lambda step: 0.1 / step, weight_decay=0.01, decay_on="weights")
    outer = None if isinstance(hypergradient, Plain) else Adam(0.05)
    runs = [Run(problem("weights"), hypergradient, schedule, outer, 5) for _ in range(2)]
    runs[1].replay = Replay(runs[1], record=False)
    for run in runs:
        for _ in range(5):
            outer_step(run)
    one, two = runs
    torch.testing.assert_close(one.state.params, two.state.params, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.phi, two.phi, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.inner_losses, two.inner_losses, rtol=1e-10, atol=1e-12)
    for name, buffer in one.state.buffers.items():
        torch.testing.assert_close(buffer, two.state.buffers[name], rtol=1e-10, atol=1e-12)


class Noisy(Net):
    """A network that draws its own random numbers in the body, like attention with dropout."""

    def forward(self, x):
        keep = torch.bernoulli(torch.full((len(x), 1), 0.5, dtype=x.dtype)) if self.training else 1
        return self.fc(torch.tanh(self.norm(self.conv(x))).mean((2, 3)) * keep)


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_a_body_that_draws_random_numbers_can_be_shared(first, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Net", Noisy)
    shared = problem()
    assert shared.stochastic
    state = torch.get_rng_state()
    one, two = (steps(shared, OneStep(2, scope="head", first=first), in_place=way) for way in (True, False))
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(one.phi, two.phi, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(one.state.params, two.state.params, rtol=1e-10, atol=1e-11)
    solved = [steps(problem(), Implicit(2, "head")).phi for _ in range(2)]
    assert torch.equal(*solved)
    assert not torch.equal(solved[0], shared.initial_phi())


class NoisyHead(nn.Module):
    """A head that draws random numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, h):
        return self.layer(h + torch.randn_like(h))


def test_a_head_that_draws_random_numbers_cannot_be_solved():
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 4), NoisyHead()).double()
    one = Bilevel(model, L2(model), **data(), batch_size=8, val_batch_size=5, head="2")
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="the head may draw random numbers"):
        steps(one, Implicit(2, "head"))
    assert torch.equal(state, torch.get_rng_state())


class Cosine(nn.Module):
    """A head that is not a linear layer, with dropout."""

    def __init__(self):
        super().__init__()
        self.dropout, self.weight = nn.Dropout(0.2), nn.Parameter(torch.randn(CLASSES, 4))

    def forward(self, h):
        return 5 * nn.functional.normalize(self.dropout(h)) @ nn.functional.normalize(self.weight).T


@pytest.mark.parametrize("hypergradient", [Implicit(2, "head"), OneStep(2, scope="head")], ids=repr)
def test_a_named_head_is_used_by_losses_of_features(hypergradient):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 4), nn.ReLU(), Cosine()).double()
    settings = {"batch_size": 8, "val_batch_size": 5, "inner_loss": gamma_loss}
    one = Bilevel(model, Gamma(), **data(), **settings, head="3")
    assert one.head.name == "3"
    assert not torch.equal(steps(one, hypergradient).phi, one.initial_phi())
    with pytest.raises(ValueError, match=r"head='3' \(Cosine\)"):
        Bilevel(model, Gamma(), **data(), **settings)


def test_a_direct_gradient_needs_no_head():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, CLASSES), nn.LogSoftmax(1)).double()
    settings = {"outer_loss": BehindMap(cross_entropy), "batch_size": 8, "val_batch_size": 5}
    one = Bilevel(model, LogitMap(4, samples=VAL), **data(), **settings)
    in_place, pure = (steps(one, Direct(2), in_place=way).phi for way in (True, False))
    torch.testing.assert_close(in_place, pure, rtol=1e-10, atol=1e-12)
    assert not torch.equal(pure, one.initial_phi())


def test_features_of_batches_of_several_sizes_are_kept():
    """The last batch of a loader is often smaller, and sentences are padded batch by batch."""
    memory = FeatureMemory(3)
    for rows, width in ((4, 5), (4, 5), (2, 7), (4, 5), (4, 6)):
        batch = Batch(torch.zeros(rows, width), torch.full((rows,), rows))
        memory.add(batch, torch.full((rows, 2), float(width)))
    batch, features = memory.joined()
    assert batch.inputs is None
    assert batch.targets.tolist() == [2] * 2 + [4] * 8
    assert features[:, 0].tolist() == [7.0] * 2 + [5.0] * 4 + [6.0] * 4


def test_batches_of_one_size_are_kept_in_the_same_tensors():
    """A recorded step writes to these tensors in each replay."""
    memory = FeatureMemory(2)
    for value in range(4):
        memory.add(Batch(torch.zeros(4, 5), torch.full((4,), value)), torch.full((4, 2), float(value)))
        if value == 1:
            tensors = memory.tensors()
    assert memory.allocated == 2
    assert all(tensors[name] is tensor for name, tensor in memory.tensors().items())
    assert memory.joined()[1][:, 0].tolist() == [2.0] * 4 + [3.0] * 4
