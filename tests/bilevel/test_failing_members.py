"""Members of a population that fail or stop do not disturb the others."""

import pytest
import torch

from calibrant.bilevel import (
    CG,
    SGD,
    Callback,
    EarlyStopping,
    History,
    Implicit,
    Neumann,
    OneStep,
    Population,
    Truncated,
    Unrolled,
)
from tests.bilevel.loop_cases import MEMBERS, OUTER, blobs, mlp, problem, rich_mlp, run


def nan_data(seed, **kwargs):
    x, y = blobs(seed)
    x[0] = float("nan")
    return problem(mlp(seed), seed=seed, train=(x, y), **kwargs)


def nan_validation(seed):
    x, y = blobs(seed)
    return problem(mlp(seed), seed=seed, val=(x * float("nan"), y))


@pytest.mark.parametrize(
    ("hypergradient", "compiler"),
    [
        (Unrolled(4), None),
        (Unrolled(4), "trace"),
        (OneStep(2), None),
        (Truncated(4, 1), None),
        (Implicit(4, solve=CG(), damping=1.0), None),
        (Implicit(4, solve=Neumann(), damping=1.0), None),
    ],
    ids=["unrolled", "traced", "one step", "truncated", "cg", "neumann"],
)
@pytest.mark.filterwarnings("ignore:The linear solve stopped before")
@pytest.mark.parametrize(
    ("broken", "sentence"), [(nan_data, "inner loss"), (nan_validation, "outer loss")], ids=["training", "validation"]
)
def test_a_member_that_fails_does_not_disturb_the_others(hypergradient, compiler, broken, sentence):
    members = [problem(mlp(0)), broken(1), problem(mlp(2), seed=2)]
    history = History()
    solution = run(Population(members), hypergradient=hypergradient, callbacks=[history], compile=compiler)
    assert set(solution.failures) == {1}
    assert sentence in solution.failures[1]
    assert "outer step 1" in solution.failures[1]
    assert solution.reasons[1] == solution.failures[1]
    assert solution.reasons[0] == solution.reasons[2] == "all outer steps done"
    for member in (0, 2):
        alone = run(problem(mlp(member), seed=member), hypergradient=hypergradient)
        assert torch.allclose(solution.params[member], alone.params, rtol=0, atol=1e-10)
        assert torch.allclose(solution.phi[member], alone.phi, rtol=0, atol=1e-10)
    assert torch.equal(solution.params[1], members[1].view.initial())  # where it stood before the step that failed
    assert solution.phi.isfinite().all()
    assert solution.member(1).failures == {0: solution.failures[1]}
    assert solution.member(0).failures == {}


def test_an_exploding_learning_rate_fails_alone():
    # Weight decay makes the iterates grow without bound, which the loss of a softmax alone does not.
    rates = torch.tensor([0.1, 1e6, 0.1], dtype=torch.float64)
    together = Population([problem(mlp(seed), seed=seed) for seed in range(MEMBERS)])
    settings = {"outer_steps": 30, "hypergradient": Unrolled(4)}
    solution = run(together, inner_optimizer=SGD(rates, weight_decay=0.1), **settings)
    assert set(solution.failures) == {1}
    assert solution.params.isfinite().all()
    alone = run(problem(mlp(2), seed=2), inner_optimizer=SGD(0.1, weight_decay=0.1), **settings)
    assert torch.allclose(solution.params[2], alone.params, rtol=0, atol=1e-10)


def test_all_members_may_fail():
    solution = run(Population([nan_data(seed) for seed in range(2)]), outer_steps=10)
    assert set(solution.failures) == {0, 1}
    assert solution.outer_steps == 1


@pytest.mark.parametrize("restart", [False, True])
def test_members_may_take_different_numbers_of_steps(restart):
    steps = torch.tensor([0, 2, 5])
    together = run(
        Population([problem(rich_mlp(seed), seed=seed, batch_size=8) for seed in range(MEMBERS)]),
        outer_steps=steps,
        restart=restart,
    )
    assert together.outer_steps == 5
    assert together.reasons == dict.fromkeys(range(MEMBERS), "all outer steps done")
    for member in range(MEMBERS):
        case = problem(rich_mlp(member), seed=member, batch_size=8)
        alone = run(case, outer_steps=int(steps[member]), restart=restart)
        assert torch.allclose(together.params[member], alone.params, rtol=0, atol=1e-8)
        assert torch.allclose(together.phi[member], alone.phi, rtol=0, atol=1e-8)
        for name, buffer in alone.buffers.items():
            assert torch.allclose(together.buffers[name][member].double(), buffer.double(), rtol=0, atol=1e-8)


def test_early_stopping_of_members_equals_their_single_runs():
    steps = []

    class Steps(Callback):
        def on_start(self, run):
            steps.append(torch.zeros(len(run.active), dtype=torch.long))

        def on_step(self, run):
            steps[-1] += run.ran

    def settings():
        stopping = EarlyStopping(patience=2, min_delta=0.03)
        return {"outer_steps": 30, "callbacks": [stopping, Steps()], "outer_optimizer": SGD(OUTER.mean().item())}

    together = run(Population([problem(mlp(s), seed=s) for s in range(MEMBERS)]), **settings())
    for member in range(MEMBERS):
        alone = run(problem(mlp(member), seed=member), **settings())
        assert torch.allclose(together.params[member], alone.params, rtol=0, atol=1e-8)
        assert torch.allclose(together.phi[member], alone.phi, rtol=0, atol=1e-8)
        assert together.reasons[member] == alone.reasons[0] == "no improvement for 2 outer steps"
        assert steps[0][member] == steps[-1][0]
    assert len(set(steps[0].tolist())) > 1  # they did stop at different steps
