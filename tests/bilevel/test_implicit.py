"""The implicit hypergradient against closed forms and finite differences of the solution."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from calibrant.bilevel import (
    CG,
    L2,
    SGD,
    Bilevel,
    Implicit,
    Neumann,
    Nystrom,
    OuterVariable,
    OuterVariables,
    SampleWeights,
    Unrolled,
    composed,
)
from tests.bilevel.cases import OPTIMIZERS, OUTERS, TRAIN, hypergradient_problem, make_problem, scored_loss
from tests.bilevel.differences import central_differences


class Ridge(OuterVariable):
    """φ: one log-strength per input of a linear regression."""

    def __init__(self, inputs):
        super().__init__()
        self.log = nn.Parameter(torch.linspace(-2, 0, inputs))


def ridge_problem(samples=40, inputs=6):
    torch.manual_seed(0)
    x = torch.randn(2 * samples, inputs, dtype=torch.float64)
    y = x @ torch.randn(inputs, dtype=torch.float64) + 0.3 * torch.randn(2 * samples, dtype=torch.float64)

    def inner(net, outer, batch):
        weight = net.params["weight"]
        fit = 0.5 * (net(batch.inputs).squeeze(-1) - batch.targets).square().mean()
        return fit + 0.5 * (outer.log.exp() * weight.square()).sum()

    def outer_loss(net, outer, batch):
        return 0.5 * (net(batch.inputs).squeeze(-1) - batch.targets).square().mean()

    model = nn.Linear(inputs, 1, bias=False).double()
    problem = Bilevel(
        model,
        Ridge(inputs),
        train=(x[:samples], y[:samples]),
        val=(x[samples:], y[samples:]),
        inner_loss=inner,
        outer_loss=outer_loss,
    )
    return problem, x, y, samples


def ridge_closed_form(problem, x, y, samples):
    """dF/dφ by differentiating the normal equations."""
    phi = problem.initial_phi().requires_grad_()
    gram = x[:samples].T @ x[:samples] / samples + torch.diag(phi.exp())
    theta = torch.linalg.solve(gram, x[:samples].T @ y[:samples] / samples)
    loss = 0.5 * (x[samples:] @ theta - y[samples:]).square().mean()
    return torch.autograd.grad(loss, phi)[0]


@pytest.mark.parametrize("solve", [CG(100, 1e-13), Neumann(5000, tolerance=1e-9), Nystrom(6, shift=1e-12)], ids=str)
def test_implicit_on_ridge_regression(solve):
    problem, *data = ridge_problem()
    phi = problem.initial_phi()
    optimizer = SGD(0.3)
    view = hypergradient_problem(problem, optimizer, phi)
    start = view.dynamics.start(problem.initial_params(phi), {})
    found = Implicit(2000, solve=solve)(view, start, phi)
    expected = ridge_closed_form(problem, *data)
    assert torch.allclose(found.gradient, expected, rtol=1e-7, atol=1e-12)
    assert found.details["linear_solve"].converged


def test_unrolled_converges_to_implicit():
    problem, *data = ridge_problem()
    phi = problem.initial_phi()
    view = hypergradient_problem(problem, SGD(0.3), phi)
    start = view.dynamics.start(problem.initial_params(phi), {})
    expected = ridge_closed_form(problem, *data)
    errors = [(Unrolled(t)(view, start, phi).gradient - expected).norm() for t in (5, 50, 500)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-8


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_implicit_on_logistic_regression(decay):
    """Against a dense Hessian; the optimiser's coupled weight decay belongs to the optimality condition."""
    problem = make_problem("weights, clipped", model=nn.Linear(2, 3), batch_size=None)
    optimizer = SGD(1.0, momentum=0.9, weight_decay=0.1 + decay)
    phi = problem.initial_phi()
    view = hypergradient_problem(problem, optimizer, phi)
    start = view.dynamics.start(problem.initial_params(phi), {})
    found = Implicit(3000, solve=CG(100, 1e-13))(view, start, phi)

    theta, batch = found.state.params, problem.train_batch(0)
    gradient = torch.func.grad(lambda t, f: problem.inner(t, {}, f, batch)[0])
    hessian = torch.func.jacrev(gradient)(theta, phi) + (0.1 + decay) * torch.eye(len(theta), dtype=theta.dtype)
    cross = torch.func.jacrev(gradient, argnums=1)(theta, phi)
    outer = torch.func.grad(lambda t, f: problem.outer(t, {}, f, problem.val_batch(0))[0], argnums=(0, 1))(theta, phi)
    expected = outer[1] - cross.T @ torch.linalg.solve(hessian, outer[0])
    assert torch.allclose(found.gradient, expected, rtol=1e-8, atol=1e-12)


def linear():
    torch.manual_seed(3)
    return nn.Linear(2, 3)


LINEAR_OUTERS = {name: OUTERS[name] for name in OUTERS if "L2" not in name and name != "initial point"} | {
    "L2 per layer": lambda: L2(linear(), initial=0.05),
    "L2 per unit": lambda: L2(linear(), per="unit", initial=0.05),
    "weights and L2": lambda: OuterVariables(SampleWeights(TRAIN, initial_weight=0.7), L2(linear(), initial=0.05)),
}
COUPLED = ("sgd", "momentum", "nesterov", "schedule", "adam", "adam, decayed")  # AdamW's decay has no such condition


def inner_solution(problem, decay, phi, theta, steps=8):
    """The zero of ``∇θ L(θ, φ) + decay·θ`` by Newton's method with a dense Hessian, from a first guess."""
    batch = problem.train_batch(0)
    gradient = torch.func.grad(lambda t: problem.inner(t, {}, phi, batch)[0] + 0.5 * decay * t.square().sum())
    for _ in range(steps):
        theta = theta - torch.linalg.solve(torch.func.jacrev(gradient)(theta), gradient(theta))
    return theta


@functools.cache
def convex_problem(outer, decay):
    """A problem with one solution, that solution, and the slopes of the outer loss, which no optimiser changes."""
    loss = scored_loss if outer == "user module" else composed()

    def convex(net, variables, batch):
        return loss(net, variables, batch).mean() + 0.1 * sum(p.square().sum() for p in net.params.values())

    problem = make_problem(outer, model=linear(), batch_size=None, inner_loss=convex, variables=LINEAR_OUTERS[outer]())
    phi = problem.initial_phi()
    solution = inner_solution(problem, decay, phi, problem.view.initial())

    def outer_value(values):
        theta = inner_solution(problem, decay, values, solution, steps=4)
        return problem.outer(theta, {}, values, problem.val_batch(0))[0]

    return problem, solution, *central_differences(outer_value, phi, step=1e-3)


@pytest.mark.parametrize("outer", LINEAR_OUTERS)
@pytest.mark.parametrize("optimizer", COUPLED)
def test_implicit_against_finite_differences_of_the_solution(optimizer, outer):
    opt = OPTIMIZERS[optimizer]
    problem, solution, along, slopes = convex_problem(outer, opt.stationary_decay())
    phi = problem.initial_phi()
    view = hypergradient_problem(problem, opt, phi)
    found = Implicit(1, solve=CG(100, 1e-13))(view, view.dynamics.start(solution, {}), phi).gradient
    assert found.norm() > 1e-8
    assert (along @ found - slopes).norm() <= 1e-6 * slopes.norm()


def test_implicit_refuses_decoupled_decay():
    problem = make_problem("weights, clipped")
    view = hypergradient_problem(problem, OPTIMIZERS["adamw"], problem.initial_phi())
    start = view.dynamics.start(problem.initial_params(problem.initial_phi()), {})
    with pytest.raises(ValueError, match="AdamW's decoupled weight decay"):
        Implicit(2)(view, start, problem.initial_phi())


def symmetric(eigenvalues, seed=0):
    """A symmetric matrix with these eigenvalues."""
    values = torch.as_tensor(eigenvalues, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=_from(seed), dtype=torch.float64)).Q
    return basis @ torch.diag(values) @ basis.T


def _from(seed):
    return torch.Generator().manual_seed(seed)


def test_a_direction_of_negative_curvature_ends_the_solve_for_good():
    matrix = symmetric([4.0, 2.0, 1.0, -1.0])
    b = torch.randn(4, generator=_from(1), dtype=torch.float64)
    with pytest.warns(UserWarning, match="negative curvature"):
        few = CG(4)(lambda v: matrix @ v, b)
    with pytest.warns(UserWarning, match="negative curvature"):
        many = CG(100)(lambda v: matrix @ v, b)
    torch.testing.assert_close(many.value, few.value)
    assert many.products <= 4
    assert not many.converged
    torch.testing.assert_close(many.residual, (matrix @ many.value - b).norm() / b.norm())


def test_a_nonconvex_member_does_not_stop_another():
    convex, other = symmetric([4.0, 2.0, 1.0, 0.5]), symmetric([4.0, 2.0, 1.0, -1.0])
    both = torch.stack([convex, other])
    b = torch.randn(2, 4, generator=_from(1), dtype=torch.float64)
    with pytest.warns(UserWarning, match="negative curvature"):
        found = CG()(lambda v: (both @ v.unsqueeze(-1)).squeeze(-1), b)
    torch.testing.assert_close(found.value[0], torch.linalg.solve(convex, b[0]))
    with pytest.warns(UserWarning, match="negative curvature"):
        alone = CG()(lambda v: other @ v, b[1])
    torch.testing.assert_close(found.value[1], alone.value)


def test_curvature_that_is_rounding_makes_no_step():
    """Two directions have curvatures that cancel except for rounding; dividing by it would make a step of 10⁷."""
    signs = torch.tensor([1.0, -1.0])
    b = torch.tensor([1.0, 1 - torch.finfo(torch.float32).eps / 2])
    assert (b * signs * b).sum() > 0
    found = CG(quiet=True)(lambda v: signs * v, b)
    assert not found.value.any()


def test_nothing_to_solve_is_solved():
    found = CG()(lambda v: v, torch.zeros(3))
    assert found.converged
    assert found.products == 0


def test_values_that_are_not_finite_affect_their_member_only():
    scale = torch.tensor([[2.0], [float("nan")]])
    found = CG(quiet=True)(lambda v: scale * v, torch.ones(2, 3))
    torch.testing.assert_close(found.value[0], torch.full((3,), 0.5))
    assert found.value[1].isnan().all()
    assert CG(quiet=True)(lambda v: v, torch.tensor([1.0, float("nan")])).value.isnan().all()
