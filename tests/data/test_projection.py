"""Tests of the projection of sparse columns."""

import numpy as np
import pytest
from scipy import sparse

from calibrant.data.projection import AXES, column_scales, fit_projection


def matrix(n=300, columns=900, seed=0):
    return sparse.random_array((n, columns), density=0.02, format="csr", rng=np.random.default_rng(seed))


def test_few_directions_are_kept_exactly():
    random = np.random.default_rng(0)
    words = sparse.random_array((5, 900), density=0.1, format="csr", rng=random)
    X = sparse.csr_array(sparse.csr_array(random.random((300, 5)) + 0.5) @ words)
    found = fit_projection(X)
    values, scaled = found.apply(X)
    dense = scaled.toarray().astype(float)
    axes, *_ = np.linalg.lstsq(values + found.mean, dense, rcond=None)  # the rows can be rebuilt from the projection
    np.testing.assert_allclose((values + found.mean) @ axes, dense, atol=1e-3 * np.abs(dense).max())
    assert found.width <= 6


def test_the_axes_are_the_leading_singular_vectors():
    X = matrix()
    found = fit_projection(X)
    scaled = found.apply(X)[1].toarray().astype(float)
    singular = np.linalg.svd(scaled, compute_uv=False)
    basis = np.linalg.qr(found.axes.astype(float))[0]
    kept, best = np.square(scaled @ basis).sum(), np.square(singular[:AXES]).sum()
    assert found.width == AXES
    assert 0.97 * best < kept <= best * (1 + 1e-6)


def test_projected_columns_have_mean_zero_and_mean_square_one():
    X = matrix()
    values, _ = fit_projection(X).apply(X)
    assert abs(values.mean()) < 1e-4
    assert np.square(values).mean() == pytest.approx(1, rel=0.05)


def test_proportions_between_columns_are_kept_up_to_a_factor():
    X = matrix()
    empty = X.count_nonzero(axis=0) == 0
    scales = column_scales(X)
    assert (scales[empty] == 0).all()
    assert np.ptp(scales[~empty]) < 1e-9 * scales.max()
    assert not empty[:8].any()
    other = X.copy().tocsc()
    other[:, [5]] *= 1e200
    other[:, [6]] *= 1e-200
    scales = column_scales(other)
    rest = np.delete(scales[~empty], [5, 6])
    typical = [np.sqrt(np.mean((other[:, [k]].data * scales[k]) ** 2)) for k in (5, 6, 7)]
    assert np.isfinite(scales).all()
    assert np.ptp(rest) < 1e-9 * rest[0]
    assert 5 < typical[0] / typical[2] < 20
    assert 0.05 < typical[1] / typical[2] < 0.2


def test_one_very_long_row_does_not_dominate():
    X = matrix()
    other = X.copy()
    other.data[other.indptr[0] : other.indptr[1]] *= 1e4
    lengths = [sparse.linalg.norm(fit_projection(own).apply(own)[1], axis=1) for own in (X, other)]
    np.testing.assert_allclose(lengths[1][1:], lengths[0][1:], rtol=0.3)
    assert lengths[1][0] == pytest.approx(100)


def test_the_units_do_not_matter():
    X = matrix()
    np.testing.assert_allclose(fit_projection(X * 1e6).apply(X * 1e6)[0], fit_projection(X).apply(X)[0], atol=1e-3)


def test_rows_are_projected_one_by_one():
    X = matrix()
    found = fit_projection(X)
    np.testing.assert_array_equal(found.apply(X[:7])[0], found.apply(X)[0][:7])
