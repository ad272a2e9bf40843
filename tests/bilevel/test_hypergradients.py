"""Tests of every hypergradient against finite differences of its map, and against the others."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from calibrant.bilevel import SGD, Adam, Forward, OneStep, Optimizer, Truncated, Unrolled, averaged
from calibrant.bilevel.gradients.dynamics import Dynamics
from calibrant.data import TensorStream
from tests.bilevel.cases import HYPERGRADIENTS, OPTIMIZERS, OUTERS, TRAIN, hypergradient_problem, make_problem, mlp
from tests.bilevel.differences import central_differences
from tests.bilevel.loop_cases import jitter


def warmed_up(problem, optimizer, phi, steps=2):
    """A state some steps into training, so that moments and running statistics are not at their start."""
    view = hypergradient_problem(problem, optimizer, phi)
    state = view.dynamics.start(problem.initial_params(phi).detach(), problem.initial_buffers())
    if problem.moves_start:  # Φ_0 is the start itself
        return state
    for _ in range(steps):
        state, _ = view.dynamics.advance(state, phi, problem.train_batch(state.step))
    return state


def outer_value(problem, optimizer, hypergradient, start, phi, anchor):
    """F of the map: φ acts where the hypergradient says it does, and is held at ``anchor`` elsewhere."""
    view = hypergradient_problem(problem, optimizer, phi)
    dynamics, state = view.dynamics, start
    if problem.moves_start and whole(hypergradient):
        state = dynamics.start(problem.initial_params(phi).detach(), problem.initial_buffers())
    if isinstance(hypergradient, OneStep):
        if hypergradient.learning_rate is not None:
            dynamics = Dynamics(dynamics.derivatives, SGD(hypergradient.learning_rate))
            state = state._replace(moments=())
        ahead, _ = dynamics.advance(state, phi, problem.train_batch(state.step))
        if hypergradient.scope == "head":
            params = state.params.clone()
            params[problem.head_slice] = ahead.params[problem.head_slice]
            ahead = ahead._replace(params=params)
        state = ahead
    else:
        window = getattr(hypergradient, "last", hypergradient.steps)
        for position in range(hypergradient.steps):
            inside = position >= hypergradient.steps - window
            state, _ = dynamics.advance(state, phi if inside else anchor, problem.train_batch(state.step))
    return view.outer.value(state.params, state.buffers, phi, view.outer_batch)[0]


def whole(hypergradient):
    """Whether it differentiates all of its steps."""
    return isinstance(hypergradient, Forward) or getattr(hypergradient, "last", 0) == hypergradient.steps


def slopes_of(problem, optimizer, hypergradient):
    """A starting state, random directions, and the slopes of the hypergradient's map along them."""
    phi = problem.initial_phi()
    start = warmed_up(problem, optimizer, phi)
    along, slopes = central_differences(lambda f: outer_value(problem, optimizer, hypergradient, start, f, phi), phi)
    return start, along, slopes


def check(problem, optimizer, hypergradient, tolerance=1e-6, known=None):
    phi = problem.initial_phi()
    start, along, slopes = known or slopes_of(problem, optimizer, hypergradient)
    estimate = hypergradient(hypergradient_problem(problem, optimizer, phi), start, phi)
    found = along @ estimate.gradient
    assert estimate.gradient.norm() > 1e-8, "a hypergradient of zero proves nothing"
    assert (found - slopes).norm() <= tolerance * slopes.norm()


@functools.cache
def slopes_by_name(outer, optimizer, hypergradient):
    return slopes_of(make_problem(outer), OPTIMIZERS[optimizer], hypergradient)


@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", HYPERGRADIENTS)
def test_against_finite_differences(name, optimizer, outer):
    """Those that differentiate all steps have one map, whose slopes are measured once."""
    hypergradient = HYPERGRADIENTS[name]
    same = Unrolled(hypergradient.steps) if whole(hypergradient) else hypergradient
    known = slopes_by_name(outer, optimizer, same)
    check(make_problem(outer), OPTIMIZERS[optimizer], hypergradient, known=known)


class RMSprop(Optimizer):
    """An optimiser of your own: an update without formulas for its derivative."""

    def init(self, params):
        return (torch.zeros_like(params),)

    def update(self, params, moments, grad, step):
        squares = 0.9 * moments[0] + 0.1 * grad.square()
        return params - self.rate(step, params) * grad / (squares + 1e-6).sqrt(), (squares,)


@pytest.mark.parametrize("name", HYPERGRADIENTS)
def test_an_optimiser_without_formulas_for_its_derivative(name):
    check(make_problem("smoothing per class"), RMSprop(0.05), HYPERGRADIENTS[name])


class Layered(nn.Module):
    """Convolution, BatchNorm, dropout and an inline random layer: everything that a replay can get wrong."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2, 16)
        # A bias before BatchNorm has a gradient of rounding noise, which Adam would blow up to full steps.
        self.conv = nn.Conv1d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        h = torch.tanh(self.lift(x)).unsqueeze(1)
        h = torch.tanh(self.norm(self.conv(h)))
        h = self.drop(h).flatten(1)
        return self.head(nn.functional.dropout(h, 0.2, self.training))


@pytest.mark.parametrize("name", ["unrolled", "unrolled, checkpoints", "truncated", "forward"])
def test_replays_batches_augmentation_masks_and_running_statistics(name):
    """The outer loss also depends on φ through BatchNorm's running statistics."""
    problem = make_problem("weights, clipped", model=Layered())
    data = problem.train.inputs, problem.train.targets
    problem.train = TensorStream(*data, batch_size=9, seed=1, augment=jitter)
    check(problem, OPTIMIZERS["adam"], HYPERGRADIENTS[name])


class Centred(nn.Module):
    """Subtracts a running mean of its activations in evaluation mode, and a running mean of that mean."""

    def __init__(self, *, how: str):
        super().__init__()
        self.how, self.first, self.head = how, nn.Linear(2, 6), nn.Linear(6, 3)
        self.register_buffer("slow", torch.zeros(6))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if not self.training:
            return self.head(h - self.mean - self.slow)
        if self.how == "assigned":
            self.slow = 0.5 * self.slow + 0.5 * self.mean
            self.mean = 0.7 * self.mean + 0.3 * h.mean(0)
        elif self.how == "in place":
            self.slow.lerp_(self.mean, 0.5)
            self.mean.mul_(0.7).add_(h.mean(0), alpha=0.3)
        else:
            with torch.no_grad():
                self.mean.mul_(0.7).add_(h.mean(0), alpha=0.3)
        return self.head(h - h.mean(0))


class InstanceNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.conv = nn.Linear(2, 8), nn.Conv1d(1, 3, 3, bias=False)
        self.norm, self.head = nn.InstanceNorm1d(3, affine=True, track_running_stats=True), nn.Linear(18, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.conv(torch.tanh(self.lift(x)).unsqueeze(1)))).flatten(1))


STATEFUL = {
    "assigned": lambda: Centred(how="assigned"),
    "in place": lambda: Centred(how="in place"),
    "instance norm": InstanceNormed,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("model", STATEFUL)
@pytest.mark.parametrize("name", ["unrolled", "unrolled, checkpoints", "truncated", "forward", "one step"])
def test_running_statistics_of_every_kind_carry_gradient(name, model):
    problem = make_problem("weights, clipped", model=STATEFUL[model]())
    assert len(problem.view.differentiable_buffers) == 2
    check(problem, OPTIMIZERS["adam"], HYPERGRADIENTS[name])


def test_statistics_that_are_kept_without_a_graph_are_named():
    with pytest.warns(UserWarning, match="updates mean without a graph.*hypergradients ignore that path"):
        make_problem("weights, clipped", model=Centred(how="no graph"))


class Rectified(nn.BatchNorm1d):
    def forward(self, input):
        return nn.functional.relu(super().forward(input))


def test_a_batch_norm_with_its_own_forward_is_named():
    with pytest.warns(UserWarning, match=r"updates 1\.running_mean, 1\.running_var without a graph"):
        make_problem("weights, clipped", model=nn.Sequential(nn.Linear(2, 4), Rectified(4), nn.Linear(4, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation=torch.tanh)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(self.embed(x.unsqueeze(-1))).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.rnn(x.unsqueeze(-1))[0][:, -1])


@pytest.mark.parametrize("model", [Attention, Recurrent])
@pytest.mark.parametrize("memory", ["graphs", "checkpoints"])
def test_modules_without_forward_mode(model, memory):
    problem = make_problem("weights, clipped", model=model())
    check(problem, OPTIMIZERS["adam"], Unrolled(4, memory=memory))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("outer", OUTERS)
def test_ways_that_must_agree(optimizer, outer):
    """Truncated(T, T) = Unrolled(T) = Forward(T), and kept graphs = recomputation."""
    problem, optimizer = make_problem(outer), OPTIMIZERS[optimizer]
    phi = problem.initial_phi()
    start = warmed_up(problem, optimizer, phi)
    view = hypergradient_problem(problem, optimizer, phi)
    reference = Unrolled(7)(view, start, phi)
    others = (Truncated(7, 7), Forward(7), Unrolled(7, memory="checkpoints"))
    for other in others:
        found = other(view, start, phi)
        assert torch.allclose(found.gradient, reference.gradient, rtol=1e-10, atol=1e-13), other
        assert torch.equal(found.state.params, reference.state.params)
        assert found.loss == reference.loss


def test_forward_refuses_many_variables():
    problem = make_problem("weights, clipped")
    phi = problem.initial_phi()
    view = hypergradient_problem(problem, SGD(0.1), phi)
    with pytest.raises(ValueError, match=f"got {TRAIN}"):
        Forward(2, at_most=10)(view, view.dynamics.start(problem.initial_params(phi), {}), phi)


def torchopt_gradient(model, x, y, weights, steps, lr, eps_root):
    torchopt = pytest.importorskip("torchopt")
    optimizer = torchopt.MetaAdam(model, lr=lr, moment_requires_grad=True, eps_root=eps_root)
    for _ in range(steps):
        losses = nn.functional.cross_entropy(model(x[:TRAIN]), y[:TRAIN], reduction="none")
        optimizer.step((weights * losses).mean())
    outer = nn.functional.cross_entropy(model(x[TRAIN:]), y[TRAIN:])
    return torch.autograd.grad(outer, weights)[0]


@pytest.fixture
def double_by_default():
    """torchopt takes its bias corrections in torch's default precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("eps_root", [1e-16, 1e-12, 1e-8])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_against_torchopt_with_the_same_root(eps_root, activation):
    model = mlp(activation)
    problem = make_problem("weights, clipped", model=model, batch_size=None, outer_loss=averaged())
    phi = problem.initial_phi()
    view = hypergradient_problem(problem, Adam(5e-3, eps_root=eps_root), phi)
    found = Unrolled(10)(view, view.dynamics.start(problem.initial_params(phi), {}), phi).gradient
    x = torch.cat([problem.train.inputs, problem.val.inputs])
    y = torch.cat([problem.train.targets, problem.val.targets])
    expected = torchopt_gradient(model, x, y, phi.clone().requires_grad_(), 10, 5e-3, eps_root)
    assert (found - expected).norm() <= 1e-10 * expected.norm()


def test_dead_units_under_adam_without_a_root():
    """Units that never fire have gradients of exactly zero: the hypergradient is finite, and exact."""
    model = mlp(nn.ReLU)
    with torch.no_grad():
        model[0].bias[:2] = -100.0  # two dead units
    problem = make_problem("weights, clipped", model=model, batch_size=None)
    phi = problem.initial_phi()
    view = hypergradient_problem(problem, Adam(1e-3), phi)
    start = view.dynamics.start(problem.initial_params(phi), {})
    estimate = Unrolled(10)(view, start, phi)
    assert torch.isfinite(estimate.gradient).all()
    along, slopes = central_differences(
        lambda f: outer_value(problem, Adam(1e-3), Unrolled(10), start, f, phi), phi, step=1e-6
    )
    assert (along @ estimate.gradient - slopes).norm() <= 1e-5 * slopes.norm()


def test_hypergradient_follows_the_samples():
    """Permuting the training set permutes the weights' hypergradient, and nothing else."""
    problem = make_problem("weights, clipped", batch_size=None)
    order = torch.randperm(TRAIN, generator=torch.Generator().manual_seed(1))
    other = make_problem("weights, clipped", batch_size=None)
    other.train = type(problem.train)(problem.train.inputs[order], problem.train.targets[order])
    found = []
    for p in (problem, other):
        phi = p.initial_phi()
        view = hypergradient_problem(p, Adam(1e-2), phi)
        found.append(Unrolled(5)(view, view.dynamics.start(p.initial_params(phi), {}), phi).gradient)
    assert torch.allclose(found[0][order], found[1], rtol=1e-8, atol=1e-12)


def test_auto_memory_uses_checkpoints_when_graphs_do_not_fit(monkeypatch):
    from calibrant.bilevel.gradients import dynamics as tape

    problem = make_problem("weights, clipped")
    phi = problem.initial_phi()
    view = hypergradient_problem(problem, Adam(1e-2), phi)
    start = view.dynamics.start(problem.initial_params(phi), {})
    roomy = Unrolled(6)(view, start, phi)
    monkeypatch.setattr(tape, "GRAPH_BUDGET", 100)
    tight = Unrolled(6)(view, start, phi)
    assert [result.details["memory"] for result in (roomy, tight)] == ["graphs", "checkpoints"]
    assert torch.allclose(roomy.gradient, tight.gradient, rtol=1e-12, atol=0)
