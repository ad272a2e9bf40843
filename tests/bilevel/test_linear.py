"""Tests of linear solvers, also for matrices that are not positive definite."""

import pytest
import torch

from calibrant.bilevel import CG


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
