"""Tests of optimisers: trajectories of torch.optim, and exact adjoints of the update."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

from calibrant.bilevel import SGD, Adam, AdamW, GroupedOptimizer, Optimizer, cosine, multistep, one_cycle
from calibrant.bilevel.optimizers.base import Linearization
from calibrant.models import FunctionalModule

SGD_, ADAM, ADAMW = (SGD, torch.optim.SGD), (Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)
# One row an optimiser: our class and torch's, the learning rate, and further arguments, which have the same names.
CASES = {
    "sgd": (SGD_, 0.3, {}),
    "sgd, decayed": (SGD_, 0.3, {"weight_decay": 0.01}),
    "momentum": (SGD_, 0.1, {"momentum": 0.9}),
    "momentum, decayed": (SGD_, 0.1, {"momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (SGD_, 0.1, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "schedule": (SGD_, 0.3, {"momentum": 0.5}),
    "adam": (ADAM, 0.01, {}),
    "adam, other betas": (ADAM, 0.01, {"betas": (0.5, 0.9), "eps": 1e-3}),
    "adam, decayed": (ADAM, 0.01, {"weight_decay": 0.01}),
    "adam, schedule": (ADAM, 0.01, {}),
    "adamw": (ADAMW, 0.01, {}),
    "adamw, decayed": (ADAMW, 0.01, {"weight_decay": 0.3}),
    "adamw, schedule": (ADAMW, 0.01, {"weight_decay": 0.3}),
}
RATES = {
    "schedule": (lambda step: 0.3 / step, lambda opt: lr_scheduler.LambdaLR(opt, lambda epoch: 1 / (epoch + 1))),
    "adam, schedule": (cosine(0.01, 200, warmup=20), lambda opt: _warmed_cosine(opt, 200, 20, 0.0)),
    "adamw, schedule": (multistep(0.01, [50, 120]), lambda opt: lr_scheduler.MultiStepLR(opt, [50, 120])),
}
OPTIMIZERS = {name: kind[0](RATES.get(name, [rate])[0], **more) for name, (kind, rate, more) in CASES.items()}
every_optimizer = pytest.mark.parametrize("opt", OPTIMIZERS.values(), ids=OPTIMIZERS)


def _warmed_cosine(opt, steps, warmup, final):
    first = lr_scheduler.LinearLR(opt, 1 / (warmup + 1), 1.0, warmup)
    then = lr_scheduler.CosineAnnealingLR(opt, steps - warmup, final)
    return lr_scheduler.SequentialLR(opt, [first, then], [warmup])


def _training(dtype):
    """A real network and its mini-batches: 2-16-16-3, 32 of 96 samples per step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    x, y = torch.randn(96, 2).to(dtype), torch.randint(0, 3, (96,))
    return model, lambda step: (x[step % 3 :: 3], y[step % 3 :: 3])


@pytest.mark.parametrize(("dtype", "steps", "tolerance"), [(torch.float64, 200, 1e-8), (torch.float32, 50, 1e-4)])
@pytest.mark.parametrize("case", CASES)
def test_trajectories_are_those_of_torch_optim(case, dtype, steps, tolerance):
    (_, reference), rate, arguments = CASES[case]
    opt = OPTIMIZERS[case]
    model, batch = _training(dtype)
    view = FunctionalModule(model)
    params = view.initial()
    moments = opt.init(params)
    theirs = reference(model.parameters(), lr=rate, **arguments)
    scheduler = RATES[case][1](theirs) if case in RATES else None
    for step in range(steps):
        x, y = batch(step)
        theirs.zero_grad()
        cross_entropy(model(x), y).backward()
        theirs.step()
        if scheduler:
            scheduler.step()

        leaf = params.requires_grad_()
        (grad,) = torch.autograd.grad(cross_entropy(view.bind(leaf, {})(x), y), leaf)
        with torch.no_grad():
            params, moments = opt.update(leaf, moments, grad, step + 1)
        assert (params - FunctionalModule(model).initial()).abs().max() <= tolerance
    assert (params - view.initial()).abs().max() > 0.05  # it went somewhere
    assert params.dtype == dtype


def _point(opt, size=7, lead=(), step=3):
    """A random point in the middle of a run, where an update can be linearised."""
    torch.manual_seed(1)
    draw = lambda: torch.randn(*lead, size, dtype=torch.float64)  # noqa: E731
    params, grad = draw(), draw()
    moments = tuple(draw() if k == 0 else draw().square() for k, _ in enumerate(opt.init(params)))
    return params, moments, grad, step


def _linearization(opt, params, moments, grad, step):
    return Linearization(params, moments, opt.update(params, moments, grad, step)[1], grad, step)


def _random_like(*tensors):
    return tuple(torch.randn_like(t) for t in tensors)


def _assert_close(found, expected, tolerance=1e-10):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max()))


@every_optimizer
@pytest.mark.parametrize(("step", "lead"), [(1, ()), (2, ()), (50, ()), (3, (3,))])
def test_pull_is_the_vjp_of_update(opt, step, lead):
    """Against autograd, which differentiates the updates of optimisers without formulas."""
    params, moments, grad, _ = _point(opt, lead=lead)
    at = _linearization(opt, params, moments, grad, step)
    adjoints = _random_like(params)[0], _random_like(*moments)
    found, expected = opt.pull(at, *adjoints), Optimizer.pull(opt, at, *adjoints)
    _assert_close((found[0], *found[1], found[2]), (expected[0], *expected[1], expected[2]))


@every_optimizer
def test_update_and_pull_leave_their_inputs_alone(opt):
    params, moments, grad, step = _point(opt)
    at = _linearization(opt, params, moments, grad, step)
    given = [params, *moments, grad, *at.new_moments]
    adjoints = [*_random_like(params, grad), *_random_like(*moments)]
    before = [t.clone() for t in given + adjoints]
    opt.update(params, moments, grad, step)
    opt.pull(at, adjoints[0], tuple(adjoints[2:]))
    assert all(torch.equal(a, b) for a, b in zip(given + adjoints, before, strict=True))


@pytest.mark.parametrize("opt", [Adam(0.01), AdamW(0.01, weight_decay=0.1)], ids=["adam", "adamw"])
@pytest.mark.parametrize("step", [1, 5])
def test_dead_coordinates_have_exact_adjoints(opt, step):
    """Moments and gradient exactly zero (a dead ReLU): autograd gives NaN there, but the derivative is finite.

    Along every direction in which g stays zero, θ' = θ·(1 − lr·decay), and with m' = (1 − b1)·g the derivative of
    lr·m̂/(√v̂ + eps) in m' is lr/(c1·eps); the root's own slope is multiplied by m' = 0.
    """
    params, _, grad, _ = _point(opt)
    dead = torch.arange(7) % 2 == 0
    moments = tuple(torch.where(dead, 0.0, m) for m in _point(opt)[1])
    grad = torch.where(dead, 0.0, grad)
    at = _linearization(opt, params, moments, grad, step)
    d_params, d_first, d_second = _random_like(params, params, params)
    found = opt.pull(at, d_params, (d_first, d_second))

    (b1, b2), decay = opt.betas, opt.weight_decay
    by_first = -opt.learning_rate / (1 - b1**step) / opt.eps
    d_new_first = d_first + by_first * d_params
    expected = (d_params * (1 - opt.learning_rate * decay), b1 * d_new_first, b2 * d_second, (1 - b1) * d_new_first)
    for a, b in zip((found[0], *found[1], found[2]), expected, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a[dead], b[dead], rtol=1e-13, atol=0.0)

    live = ~dead
    _, pull = torch.func.vjp(
        lambda p, m, g: opt.update(p, m, g, step), params[live], tuple(m[live] for m in moments), grad[live]
    )
    reference = pull((d_params[live], (d_first[live], d_second[live])))
    _assert_close((found[0][live], found[2][live]), (reference[0], reference[2]))


def test_a_root_epsilon_moves_the_root():
    opt = Adam(0.01, eps_root=1e-4)
    params, moments, grad, step = _point(opt)
    (new, (first, second)), (b1, b2) = opt.update(params, moments, grad, step), opt.betas
    by_hand = params - 0.01 * (first / (1 - b1**step)) / ((second / (1 - b2**step) + 1e-4).sqrt() + 1e-8)
    _assert_close((new,), (by_hand,), 1e-14)
    zero = torch.zeros_like(params)
    at = _linearization(opt, params, (zero, zero), zero, 1)
    out, pull = torch.func.vjp(lambda p, m, g: opt.update(p, m, g, 1), params, (zero, zero), zero)
    adjoints = torch.ones_like(out[0]), tuple(torch.ones_like(m) for m in out[1])
    _assert_close(opt.pull(at, *adjoints)[2:], pull(adjoints)[2:])


@every_optimizer
def test_rates_as_a_vector_equal_single_runs(opt):
    scales = [0.5, 1.0, 3.0]

    def scaled(scale):
        if callable(opt.learning_rate):
            return replace(opt, learning_rate=lambda step: scale * opt.learning_rate(step))
        return replace(opt, learning_rate=scale * opt.learning_rate)

    together = scaled(torch.tensor(scales, dtype=torch.float64))
    params, _, _, _ = _point(opt, lead=(3,))
    gradients = torch.randn(5, 3, 7, dtype=torch.float64)
    states = [(params, opt.init(params))] + [(params[k], opt.init(params[k])) for k in range(3)]
    singles = [scaled(s) for s in scales]
    for step, grad in enumerate(gradients, 1):
        before = states
        states = [together.update(*states[0], grad, step)]
        states += [singles[k].update(*before[k + 1], grad[k], step) for k in range(3)]
        at = Linearization(*before[0], states[0][1], grad, step)
        d_params, d_moments = _random_like(params)[0], _random_like(*at.moments)
        pulled = together.pull(at, d_params, d_moments)
        for k in range(3):
            _assert_close((states[0][0][k],), (states[k + 1][0],), 1e-14)
            own = Linearization(*before[k + 1], states[k + 1][1], grad[k], step)
            one = singles[k].pull(own, d_params[k], tuple(m[k] for m in d_moments))
            _assert_close((pulled[0][k], pulled[2][k]), (one[0], one[2]), 1e-12)


@pytest.mark.parametrize("rate", [torch.tensor(0.1, dtype=torch.float64), torch.full((2,), 0.1, dtype=torch.float64)])
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_a_rate_in_float64_leaves_float32_parameters_in_float32(kind, rate):
    opt, params = kind(rate), torch.ones(2, 3)
    after, moments = opt.update(params, opt.init(params), params, 1)
    assert {t.dtype for t in (after, *moments)} == {torch.float32}
    at = Linearization(params, opt.init(params), moments, params, 1)
    assert opt.pull(at, params, moments)[0].dtype == torch.float32


def test_groups_move_each_its_own_stretch():
    first, second, third = SGD(0.1, momentum=0.9), Adam(0.01), SGD(1.0)
    grouped = GroupedOptimizer(parts=((3, first), (4, second), (2, third)))
    params = torch.randn(2, 9, dtype=torch.float64)
    state = params, grouped.init(params)
    pieces = [(o, p, o.init(p)) for o, p in zip((first, second, third), params.split([3, 4, 2], -1), strict=True)]
    for step in range(1, 4):
        grad = torch.randn_like(params)
        state = grouped.update(*state, grad, step)
        pieces = [(o, *o.update(p, m, g, step)) for (o, p, m), g in zip(pieces, grad.split([3, 4, 2], -1), strict=True)]
    assert torch.equal(state[0], torch.cat([p for _, p, _ in pieces], -1))
    expected = [m for _, _, moments in pieces for m in moments]
    assert all(torch.equal(a, b) for a, b in zip(state[1], expected, strict=True))


@pytest.mark.parametrize("lengths", [(3, 4), (3, 7), ()])
def test_groups_must_cover_the_vector(lengths):
    grouped = GroupedOptimizer(parts=tuple((n, SGD(0.1)) for n in lengths))
    with pytest.raises(ValueError, match=f"the 9 variables; got a sum of {sum(lengths)}"):
        grouped.init(torch.zeros(9))


NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SGD(-0.1), "learning_rate must be finite and at least 0; got -0.1"),
        (lambda: SGD(NAN), "learning_rate must be finite and at least 0; got nan"),
        (lambda: Adam(torch.tensor([0.1, -0.1])), "learning_rate must be finite and at least 0"),
        (lambda: SGD(float("inf")), "learning_rate must be finite and at least 0; got inf"),
        (lambda: SGD(0.1, weight_decay=-1), "weight_decay must be finite and at least 0; got -1"),
        (lambda: SGD(0.1, weight_decay=NAN), "weight_decay must be finite and at least 0; got nan"),
        (lambda: SGD(0.1, momentum=1.0), r"momentum must be in \[0, 1\); got 1.0"),
        (lambda: SGD(0.1, momentum=-0.5), r"momentum must be in \[0, 1\); got -0.5"),
        (lambda: SGD(0.1, nesterov=True), "momentum must be above 0"),
        (lambda: Adam(0.1, betas=(0.9, 1.0)), r"betas must be two numbers in \[0, 1\)"),
        (lambda: Adam(0.1, betas=(0.9,)), r"betas must be two numbers in \[0, 1\)"),
        (lambda: Adam(0.1, eps=0.0), "eps must be positive"),
        (lambda: AdamW(0.1, eps=NAN), "eps must be positive"),
        (lambda: AdamW(0.1, eps_root=-1e-8), "eps_root at least 0"),
        (lambda: AdamW(0.1, weight_decay=0.1).stationary_decay(), "stationarity condition"),
        (lambda: cosine(-0.1, 10), "learning_rate must be finite and at least 0; got -0.1"),
        (lambda: cosine(0.1, 10, final=-1.0), "final must be finite and at least 0"),
        (lambda: cosine(0.1, 10, warmup=10), "warmup must be between 0 and steps - 1 = 9; got 10"),
        (lambda: cosine(0.1, 0), "warmup must be between 0 and steps - 1"),
        (lambda: multistep(0.1, [0, 5]), r"milestones must be numbers of steps, at least 1 each; got \[0, 5\]"),
        (lambda: multistep(0.1, [5], factor=0.0), "factor must be positive; got 0.0"),
    ],
)
def test_bad_hyperparameters_are_named(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_stationary_decay_is_the_coupled_one():
    assert SGD(0.1, weight_decay=0.2).stationary_decay() == 0.2
    assert Adam(0.1, weight_decay=0.2).stationary_decay() == 0.2
    assert AdamW(0.1, weight_decay=0.0).stationary_decay() == 0.0


SCHEDULES = {
    "cosine": (lambda lr: cosine(lr, 30), lambda opt: lr_scheduler.CosineAnnealingLR(opt, 30)),
    "cosine to 0.01": (
        lambda lr: cosine(lr, 30, final=0.01),
        lambda opt: lr_scheduler.CosineAnnealingLR(opt, 30, 0.01),
    ),
    "warmed cosine": (lambda lr: cosine(lr, 30, warmup=7, final=0.01), lambda opt: _warmed_cosine(opt, 30, 7, 0.01)),
    "multistep": (
        lambda lr: multistep(lr, [5, 20, 20], 0.3),
        lambda opt: lr_scheduler.MultiStepLR(opt, [5, 20, 20], 0.3),
    ),
    "one cycle": (
        lambda lr: one_cycle(lr, 31, warmup=0.2),
        lambda opt: lr_scheduler.OneCycleLR(
            opt, opt.param_groups[0]["lr"], total_steps=31, pct_start=0.2, cycle_momentum=False
        ),
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("lr", [0.4, torch.tensor([0.4, 0.2], dtype=torch.float64)], ids=["number", "per member"])
def test_schedules_are_those_of_torch(name, lr):
    ours, theirs = SCHEDULES[name]
    schedule = ours(lr)
    for member, start in enumerate([lr] if isinstance(lr, float) else lr.tolist()):
        opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=start)
        scheduler = theirs(opt)
        for step in range(1, 31):
            value = schedule(step) if isinstance(lr, float) else float(schedule(step)[member])
            assert value == pytest.approx(opt.param_groups[0]["lr"], rel=1e-12), step
            opt.step()
            scheduler.step()


def test_the_last_rate_stays():
    assert one_cycle(0.3, 40)(45) == one_cycle(0.3, 40)(40)
    schedule = cosine(0.4, 30, warmup=5, final=0.01)
    assert [schedule(step) for step in (31, 32, 100)] == pytest.approx([0.01] * 3)
    assert max(schedule(step) for step in range(1, 31)) == schedule(6) == 0.4
