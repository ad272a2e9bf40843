"""Tests of the layers that embed columns."""

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.bilevel import Adam, Bilevel, ColumnL2, Population, Unrolled, solve
from calibrant.models import mlp
from calibrant.models.architectures.mlp import (
    LARGEST,
    EmbeddingLayer,
    PiecewiseLinear,
    bin_edges,
    make_encoding,
)


def rows(count: int = 40, columns: int = 3) -> torch.Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(0))


def test_piecewise_features_are_the_cumulative_share_of_each_bin() -> None:
    x = torch.tensor([[0.0], [1.0], [2.0], [4.0], [8.0]])
    encoding = PiecewiseLinear(x, torch.tensor([0]), bins=8)  # four gaps between five values
    found = encoding.inside(torch.tensor([[-3.0], [0.5], [3.0], [100.0]]))
    expected = [[0, 0, 0, 0], [0.5, 0, 0, 0], [1, 1, 0.5, 0], [1, 1, 1, 1]]
    np.testing.assert_allclose(found.numpy(), expected)
    np.testing.assert_allclose(encoding(x).mean(0).numpy(), 0, atol=1e-6)


def test_bins_hold_equal_shares_of_the_rows() -> None:
    values = torch.randn(1001, generator=torch.Generator().manual_seed(1)).exp()
    edges = bin_edges(values, 8)
    assert edges[0] == values.min()
    assert edges[-1] == values.max()
    counts = torch.histogram(values, edges)[0]
    assert counts.min() >= 124
    assert counts.max() <= 127


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_column_of_mostly_one_value_still_has_bins(share: float) -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(2))
    values[: int(400 * share)] = 0.0
    edges = bin_edges(values, 8)
    assert len(edges) > 2
    assert (edges.diff() > 0).all()


def test_binary_columns_keep_no_bins_and_wide_rows_fewer() -> None:
    x = rows(40, 3)
    x[:, 1] = (x[:, 1] > 0).float()
    encoding = make_encoding(x)
    assert encoding is not None
    assert set(encoding.source.tolist()) == {0, 2}
    assert make_encoding(x[:, 1:2]) is None
    wide = make_encoding(rows(40, 100))
    assert wide is not None
    assert wide.size == 100 * (LARGEST // 100)
    assert make_encoding(rows(40, LARGEST)) is None


def test_without_an_encoding_the_network_is_the_plain_one() -> None:
    x = rows()
    plain, embedded = mlp(3, 2, seed=5), mlp(3, 2, encoding=make_encoding(x), seed=5)
    assert [type(layer) for layer in plain] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert isinstance(embedded[0], EmbeddingLayer)
    torch.testing.assert_close(embedded[0](x), embedded[0].linear(x))  # V starts at zero


def test_members_of_a_traced_population_equal_their_eager_single_runs() -> None:
    """Each member has bins of its own data, and second derivatives agree with and without tracing."""
    problems = []
    for seed in range(2):
        x = rows(30) * (seed + 1) + seed
        labels = (x[:, 0] > x[:, 0].median()).long()
        encoding = make_encoding(x, 3)
        assert encoding is not None
        network = mlp(3, 2, hidden=(4,), activation="silu", encoding=encoding, seed=seed).double()
        columns = {"0.embedded.weight": encoding.source.unique(return_inverse=True)[1]}
        outer = ColumnL2(network, columns, initial=0.1, shrink=0.01).double()
        problems.append(
            Bilevel(network, outer, train=(x[:20].double(), labels[:20]), val=(x[20:].double(), labels[20:]))
        )
    settings = {"hypergradient": Unrolled(3), "inner_optimizer": Adam(0.1), "outer_optimizer": Adam(0.1)}
    together = solve(Population(problems), outer_steps=3, compile="trace", **settings)
    for k, problem in enumerate(problems):
        alone = solve(problem, outer_steps=3, compile=None, **settings)
        np.testing.assert_allclose(together.params[k], alone.params, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(together.phi[k], alone.phi, rtol=1e-8, atol=1e-10)
        assert not torch.equal(alone.phi, problem.start_phi)
