"""Tests of L2 factors per column."""

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.bilevel import L2, Adam, Bilevel, ColumnL2, Unrolled, solve


def test_with_factors_of_one_it_is_the_penalty_per_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    params = dict(model.named_parameters())
    columns = {"0.weight": torch.arange(3)}
    own, plain = ColumnL2(model, columns, initial=0.3), L2(model, initial=0.3)
    torch.testing.assert_close(own.penalty(params), plain.penalty(params))
    with torch.no_grad():
        own.relative[0][1] = np.log(5.0)
    more = 0.5 * 0.3 * 4 * params["0.weight"][:, 1].square().sum()
    torch.testing.assert_close(own.penalty(params), plain.penalty(params) + more)


def test_groups_share_a_factor_and_layers_start_as_given() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    own = ColumnL2(model, {"0.weight": torch.tensor([0, 0, 1, 1])}, initial={"0.weight": 0.2}, shrink=0.5)
    assert own.relative[0].shape == (2,)
    np.testing.assert_allclose(own.coefficients().detach(), [0.2])
    with torch.no_grad():
        own.relative[0].fill_(2.0)
    assert float(torch.as_tensor(own.prior()).detach()) == pytest.approx(0.5 * 8)


def test_columns_that_do_not_help_are_penalised_more() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=generator, dtype=torch.float64)
    labels = (x[:, 0] + 0.3 * torch.randn(120, generator=generator) > 0).long()
    model = nn.Sequential(nn.Linear(4, 2)).double()
    outer = ColumnL2(model, {"0.weight": torch.arange(4)}, initial=0.01).double()
    problem = Bilevel(model, outer, train=(x[:30], labels[:30]), val=(x[30:], labels[30:]))
    found = solve(
        problem, hypergradient=Unrolled(30), inner_optimizer=Adam(0.1), outer_optimizer=Adam(0.2), outer_steps=15
    )
    relative = found.outer_variables()["relative.0"]
    assert relative[0] < relative[1:].min()


def test_unknown_matrices_and_negative_shrinkage_are_errors() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"got 1\.weight"):
        ColumnL2(model, {"1.weight": torch.arange(4)})
    with pytest.raises(ValueError, match="shrink must be at least 0"):
        ColumnL2(model, {"0.weight": torch.arange(4)}, shrink=-1.0)
