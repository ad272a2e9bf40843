"""Tests of rows that belong together: exact copies, groups and near copies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from calibrant.data.splits.exact_copies import copy_groups, independent_size, joined, row_codes
from calibrant.data.splits.near_copies import near_copies, near_copy_groups


def normal(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns))


@given(st.lists(st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, np.nan, -3.0]), min_size=3, max_size=3), min_size=2))
def test_codes_are_equal_exactly_for_equal_rows(rows):
    values = np.array(rows)
    codes = row_codes(values)
    same = ((values[:, None] == values[None]) | (np.isnan(values[:, None]) & np.isnan(values[None]))).all(-1)
    assert np.array_equal(codes[:, None] == codes[None], same)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32, np.uint8, bool])
def test_values_change_places_between_columns(kind):
    values = np.array([[0, 1, 1], [1, 0, 1], [0, 1, 1]]).astype(kind)
    codes = row_codes(values)
    assert codes[0] == codes[2] != codes[1]


def test_sparse_matrices_and_data_frames():
    dense = (normal(60, 8) > 0) * normal(60, 8, 1).round(1)
    dense[40:] = dense[:20]
    expected = row_codes(dense)[:, None] == row_codes(dense)[None]
    frame = pd.DataFrame(dense).assign(text=["a", "b"] * 30)
    for found in (
        row_codes(sparse.csr_array(dense)),
        row_codes(sparse.coo_matrix(dense)),
        row_codes(pd.DataFrame(dense)),
    ):
        assert np.array_equal(found[:, None] == found[None], expected)
    assert np.array_equal(copy_groups(frame)[40:], copy_groups(frame)[:20])
    frame.loc[45, "text"] = "c"
    assert copy_groups(frame)[45] != copy_groups(frame)[5]
    assert row_codes(np.array([["a"], ["b"]])) is None


@pytest.mark.parametrize("times", [2, 10])
@pytest.mark.parametrize("columns", [2, 30])
def test_copies_are_found(times, columns):
    groups = copy_groups(np.tile(normal(100, columns), (times, 1)))
    assert len(np.unique(groups)) == 100
    assert np.array_equal(groups.reshape(times, 100), np.tile(groups[:100], (times, 1)))


def test_one_pair_of_copies_among_many_rows():
    values = normal(1000, 4)
    values[999] = values[3]
    groups = copy_groups(values)
    assert groups[999] == groups[3]
    assert len(np.unique(groups)) == 999


@pytest.mark.parametrize(("values", "columns"), [(2, 1), (2, 3), (4, 4), (10, 2), (1, 5)])
def test_rows_of_few_values_are_not_copies(values, columns):
    assert copy_groups(np.random.default_rng(0).integers(0, values, (2000, columns)).astype(float)) is None


def test_rows_without_copies_have_no_groups():
    assert copy_groups(normal(500, 3)) is None
    assert copy_groups(normal(1, 3)) is None


def test_groups_and_copies_are_joined():
    assert joined(None, None) is None
    assert joined(np.array([5, 5, 7]), None).tolist() == [5, 5, 7]
    # 0 and 1 are of one group, 1 and 2 are copies, 2 and 3 of another group; 4 is alone.
    found = joined(np.array([8, 8, 3, 3, 9]), np.array([0, 1, 1, 2, 4]))
    assert found[0] == found[1] == found[2] == found[3] != found[4]


@pytest.mark.parametrize("columns", [2, 5, 40, 300])
@pytest.mark.parametrize("rows", [100, 3000])
def test_near_copies_are_noticed(columns, rows):
    distinct = normal(rows // 5, columns)
    repeated = np.repeat(distinct, 5, axis=0)
    assert near_copies(repeated + 1e-3 * normal(len(repeated), columns, 1)).suspicious


@pytest.mark.parametrize("columns", [2, 5, 40])
def test_near_copies_are_put_together(columns):
    repeated = np.repeat(normal(200, columns), 4, axis=0)
    repeated[0] = repeated[1]  # an exact copy among them
    groups = near_copy_groups(repeated + 1e-3 * normal(len(repeated), columns, 1))
    together = groups.reshape(200, 4)
    assert np.mean((together == together[:, :1]).all(1)) > 0.9
    assert len(np.unique(groups)) > 150


def test_rows_that_chain_together_are_left_alone():
    line = np.concatenate([np.linspace(0, 1, 300), 100 + np.arange(300.0)])[:, None]
    tight = np.repeat(line, 2, axis=0) + 1e-9 * normal(1200, 1)
    groups = near_copy_groups(tight)
    assert groups is None or np.bincount(groups).max() < 240
    assert near_copy_groups(normal(30, 3)) is None


@pytest.mark.parametrize("columns", [1, 2, 5, 40, 300])
def test_ordinary_rows_raise_no_suspicion(columns):
    for values in (
        normal(1500, columns),
        np.random.default_rng(0).uniform(size=(1500, columns)),
        normal(1500, columns) ** 3,
    ):
        assert not near_copies(values).suspicious
    clusters = np.random.default_rng(0).integers(0, 5, 1500)[:, None] * 10.0
    assert not near_copies(normal(1500, columns) + clusters).suspicious


def coded(*columns):
    """Categories as 0/1 columns."""
    return np.concatenate([np.eye(c.max() + 1)[c] for c in columns], axis=1)


@pytest.mark.parametrize("seed", range(5))
def test_small_cells_of_categories_are_no_near_copies(seed):
    generator = np.random.default_rng(seed)
    for rows in (80, 200):
        index = np.linspace(-1.7, 1.7, rows)[:, None]
        values = np.concatenate([index, generator.integers(0, 2, (rows, 3))], axis=1)
        assert not near_copies(values, seed=seed).suspicious
    variety, year, site = (k.ravel() for k in np.indices((10, 2, 6)))  # every combination once, like a field trial
    crop = generator.normal(size=120) + generator.normal(0, 1.5, 6)[site] + generator.normal(size=2)[year]
    crop = ((crop - crop.mean()) / crop.std())[:, None]
    for known in (coded(year, site), coded(variety, year), coded(variety, site)):
        assert not near_copies(np.concatenate([crop, known], axis=1), seed=seed).suspicious


@pytest.mark.parametrize("categories", [1, 2, 4, 8])
@pytest.mark.parametrize("copies", [2, 5])
def test_near_copies_with_equal_categories_are_noticed(categories, copies):
    rows = 300 // copies
    known = np.random.default_rng(0).integers(0, 2, (rows, categories))
    repeated = np.repeat(np.concatenate([normal(rows, 4), known], axis=1), copies, axis=0)
    repeated[:, :4] += 1e-3 * normal(len(repeated), 4, 1)
    assert near_copies(repeated).suspicious


def test_few_rows_and_exact_copies_are_no_near_copies():
    assert near_copies(normal(50, 3)) is None
    assert near_copies(np.tile(normal(30, 3), (10, 1))) is None
    assert not near_copies(np.tile(normal(200, 3), (10, 1))).suspicious


def test_rows_that_err_together_count_once():
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(3), 2000)
    labels = (probs.cumsum(1) > generator.random((2000, 1))).argmax(1)
    groups = np.arange(2000) // 10
    assert independent_size(labels, probs, None) == 2000
    assert independent_size(labels, probs, np.arange(2000)) == 2000
    alone = independent_size(labels, probs, groups)  # drawn one by one, though they are of one group
    assert 1000 < alone <= 2000
    copies = np.repeat(labels[:200], 10), np.repeat(probs[:200], 10, axis=0)
    assert independent_size(*copies, groups) == pytest.approx(200)
    some = np.concatenate([np.zeros(1000), np.arange(1, 1001)])  # one row a thousand times, and as many others
    mixed = (
        np.concatenate([np.full(1000, 2), labels[:1000]]),
        np.concatenate([np.tile(probs[0], (1000, 1)), probs[:1000]]),
    )
    assert independent_size(*mixed, some) == pytest.approx(1001, rel=1e-3)


def test_certain_predictions_that_were_right_give_no_division_by_zero():
    assert independent_size(np.zeros(6, dtype=int), np.eye(2)[np.zeros(6, dtype=int)], np.arange(6) // 3) == 2


def test_hashing_does_not_change_a_sparse_matrix():
    matrix = sparse.csr_matrix((np.ones(3), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    assert row_codes(matrix) == row_codes(sparse.csr_matrix([[1.0, 2.0]]))
    assert matrix.indices.tolist() == [1, 0, 1]
