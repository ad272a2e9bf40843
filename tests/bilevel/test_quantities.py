"""Tests of the quantities that outer variables represent."""

from __future__ import annotations

import pytest
import torch

from calibrant.bilevel import SGD, Population, Unrolled, solve
from tests.bilevel.cases import OUTERS, TRAIN, make_problem


@pytest.mark.parametrize("outer", OUTERS)
def test_a_solution_tells_what_its_outer_variables_stand_for(outer):
    case = make_problem(outer)
    settings = {"inner_optimizer": SGD(0.1), "outer_optimizer": SGD(0.5), "restart": True, "outer_steps": 2}
    solution = solve(case, hypergradient=Unrolled(2), **settings)
    found = solution.outer_quantities()
    raw = solution.outer_variables()
    if "weights" in found:
        assert found["weights"].shape == (TRAIN,)
        assert ((found["weights"] >= 0) & (found["weights"] <= 1)).all()
    expected = {
        "weights, clipped": lambda: {"weights": raw["raw"]},
        "weights, sigmoid, prior": lambda: {"weights": raw["raw"].sigmoid()},
        "L2 per layer": lambda: {"coefficients": raw["log"].exp()},
        "smoothing per sample": lambda: {"smoothing": raw["raw"].sigmoid()},
        "noise per class": lambda: {"rate": 0.95 * raw["raw"].sigmoid()},
        "initial point": lambda: raw,
        "user module": lambda: raw,
        "weights and L2": lambda: {
            "parts.0.weights": raw["parts.0.raw"],
            "parts.1.coefficients": raw["parts.1.log"].exp(),
        },
    }.get(outer, lambda: found)()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert not found[name].requires_grad
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=0)


def test_a_population_tells_what_its_members_outer_variables_stand_for():
    first = make_problem("weights, sigmoid, prior")
    population = Population([first, first.replicate(seed=1)])
    settings = {"inner_optimizer": SGD(0.1), "outer_optimizer": SGD(0.5), "outer_steps": 1}
    solution = solve(population, hypergradient=Unrolled(2), **settings)
    with pytest.raises(ValueError, match=r"solution\.member"):
        solution.outer_quantities()
    weights = solution.member(1).outer_quantities()["weights"]
    assert torch.equal(weights, solution.outer_variables()["raw"][1].sigmoid())
