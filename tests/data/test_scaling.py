"""Tests of the scaling of inputs: plain without outliers, robust with them; missing values and categories."""

import numpy as np
import pytest
import torch

from calibrant.data.scaling import LIMIT, drawn_in, fit_scaling, plausible


def normal(rows=1000, columns=3, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, (rows, columns))


def test_without_wild_values_it_is_the_plain_mean_and_deviation():
    x = normal()
    found = fit_scaling(x)
    np.testing.assert_allclose(found.mean, x.mean(0))
    np.testing.assert_allclose(found.scale, x.std(0))
    np.testing.assert_allclose(found.apply(x).numpy(), (x - x.mean(0)) / x.std(0), atol=1e-6)


@pytest.mark.parametrize("share", [0.005, 0.015, 0.05])
def test_extreme_values_do_not_hide_the_spread(share):
    """With more than 1 % of extreme values, the outer quantiles are extreme too."""
    x = np.random.default_rng(0).normal(size=(1000, 1))
    x[: int(share * 1000)] = 1e12
    inside = fit_scaling(x).transform(x)[int(share * 1000) :]
    assert 0.3 < inside.std() < 1.1


@pytest.mark.parametrize("wild", [999.0, -1e6, 1e200])
def test_a_sentinel_in_some_rows_hardly_moves_the_scale(wild):
    x, plain = normal(), fit_scaling(normal())
    x[:10, 1] = wild
    found = fit_scaling(x)
    assert abs(found.mean[1] - plain.mean[1]) < 0.2 * plain.scale[1]
    assert plain.scale[1] < found.scale[1] < 1.6 * plain.scale[1]
    assert found.apply(x).abs().max() <= 2 * LIMIT


def test_rare_values_in_a_column_of_zeros_count():
    x = np.zeros((1000, 2))
    x[:150, 0] = np.arange(150.0)  # 85 % zeros
    x[:3, 1] = 1.0  # three ones in a thousand
    found = fit_scaling(x)
    np.testing.assert_allclose(found.mean, x.mean(0))
    np.testing.assert_allclose(found.scale, x.std(0))
    assert plausible(x[:, 1]) == (-np.inf, np.inf)


def test_rounding_among_equal_values_is_no_scale():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(1000) < 0.5, 0.3, 0.1 + 0.2)
    x[:50] = rng.uniform(5, 100, 50)
    column = x[:, None]
    np.testing.assert_allclose(fit_scaling(column).scale, column.std(0))


def test_many_values_are_not_wild():
    x = np.random.default_rng(0).normal(0.0, 1e-6, (1000, 1))
    x[:240, 0] = np.linspace(1, 100, 240)
    scaled = fit_scaling(x).apply(x[:240]).numpy()[:, 0]
    assert (np.diff(scaled) > 0).all()


def test_rows_of_no_weight_do_not_count():
    x, weights = normal(), np.ones(1000)
    x[:100], weights[:100] = 1e5, 0.0
    some, all_rows = fit_scaling(x[100:], weights[100:]), fit_scaling(x, weights)
    np.testing.assert_allclose(all_rows.mean, some.mean)
    np.testing.assert_allclose(all_rows.scale, some.scale)


def test_values_far_out_stay_in_order_and_are_bounded():
    values = np.array([-np.inf, -1e300, -30.0, -LIMIT, -1.0, 0.0, 2.5, LIMIT, 11.0, 12.0, 1e3, np.inf])
    found = drawn_in(values)
    inside = np.abs(values) <= LIMIT
    np.testing.assert_array_equal(found[inside], values[inside])
    assert (np.diff(found) >= 0).all()
    assert found[-1] == -found[0] == 2 * LIMIT
    assert found[8] < found[9] < found[10] < 2 * LIMIT


def test_missing_values_become_the_mean_and_are_marked():
    x = normal()
    x[::3, 1] = np.nan
    found = fit_scaling(x)
    scaled = found.apply(x).numpy()
    assert found.width == 4
    assert found.numbers.tolist() == [0, 1, 3]
    assert found.sources.tolist() == [0, 1, 1, 2]
    np.testing.assert_array_equal(scaled[:, 2], np.isnan(x[:, 1]))
    assert (scaled[::3, 1] == 0).all()
    present = x[~np.isnan(x[:, 1]), 1]
    np.testing.assert_allclose((found.mean[1], found.scale[1]), (present.mean(), present.std()))
    x[:, 0] = np.nan  # where training had none, there is no mark
    assert (found.apply(x).numpy()[:, 0] == 0).all()


def test_a_column_without_values_is_switched_off():
    x = normal()
    x[:, 1] = np.nan
    found = fit_scaling(x)
    assert found.width == 3
    assert (found.apply(normal()).numpy()[:, 1] == 0).all()


def test_codes_become_one_hot_and_stay_zero_or_one():
    x = np.array([[0.0, 5.0, 1.0], [2.0, 6.0, 0.0], [1.0, 7.0, np.nan], [0.0, 8.0, 1.0]])
    found = fit_scaling(x, categories=np.array([3, 0, 2]))
    assert found.numbers.tolist() == [3]
    new = np.array([[2.0, 6.5, np.nan], [-1.0, np.nan, -1.0], [np.nan, 6.5, 1.0]])
    expected = [[0, 0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0]]
    assert found.apply(new).tolist() == expected


def test_many_rows_are_scaled_in_blocks_as_one(monkeypatch):
    x = normal()
    x[::7, 0], x[:, 2] = np.nan, np.arange(1000) % 5
    found = fit_scaling(x, categories=np.array([0, 0, 5]))
    whole = found.apply(x)
    monkeypatch.setattr("calibrant.data.scaling.ROWS_AT_ONCE", 64)
    assert torch.equal(found.apply(x), whole)
