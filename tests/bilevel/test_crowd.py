"""Tests that stopped members are no longer computed, and that the results stay the same."""

import pytest
import torch

import calibrant.bilevel.running.run as loop
from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    Checkpoint,
    EarlyStopping,
    Forward,
    GroupedOptimizer,
    History,
    InitialPoint,
    OneStep,
    Plain,
    Population,
    Truncated,
)
from calibrant.bilevel.running.outer_step import active_rows
from tests.bilevel.loop_cases import blobs, mlp, problem, rich_mlp, run

MEMBERS = 6
STEPS = torch.tensor([1, 6, 2, 0, 4, 2])
INNER = torch.linspace(0.005, 0.03, MEMBERS, dtype=torch.float64)


@pytest.mark.parametrize(
    ("active", "rows"),
    [
        ("1111", None),
        ("1011", None),
        ("0101", [1, 3]),
        ("0010", [2]),
        ("00100", [2]),
        ("01001", [1, 4]),
        ("0000", None),
        ("11100000", [0, 1, 2, 3]),  # filled up by one that has stopped
        ("00000111", [0, 5, 6, 7]),
        ("1", None),
    ],
)
def test_which_members_are_computed(active, rows):
    chosen = active_rows(torch.tensor([a == "1" for a in active]))
    assert chosen is rows is None or chosen.tolist() == rows


SHARED = blobs(1)
CASES = {
    "rates by member": {"inner_optimizer": Adam(INNER)},
    "scheduled rates by member": {"inner_optimizer": SGD(lambda step: INNER * 10 / step, momentum=0.9)},
    "restarted": {"restart": True},
    "look-ahead": {"hypergradient": OneStep(3), "inner_optimizer": Adam(INNER)},
    "truncated": {"hypergradient": Truncated(4, 2), "clip_norm": 0.01},
    "forward": {"hypergradient": Forward(3), "outer_optimizer": SGD(0.1)},
    "plain, in groups": {
        "hypergradient": Plain(3),
        "outer_optimizer": None,
        "inner_optimizer": GroupedOptimizer(parts=((27, SGD(INNER)), (18, Adam(INNER)))),
    },
}


def population(**kwargs):
    return Population([problem(rich_mlp(s), seed=s, batch_size=8, val=SHARED, **kwargs) for s in range(MEMBERS)])


def both(monkeypatch, make, **settings):
    """A run with all members computed, the same run with the running ones, and how many were computed."""
    with monkeypatch.context() as patch:
        patch.setattr(loop, "active_rows", lambda active: None)
        whole = run(make(), **settings)
    together, counts = make(), []
    inner = together.inner
    together.inner = lambda params, *rest: (counts.append(len(params)), inner(params, *rest))[1]
    return whole, run(together, **settings), counts


@pytest.mark.parametrize("case", CASES)
def test_the_results_are_those_of_computing_all(case, monkeypatch):
    outer = {"outer": L2(rich_mlp(), initial=0.01)} if case == "forward" else {}
    history = History()
    settings = {"outer_steps": STEPS, "callbacks": [history], **CASES[case]}
    whole, part, counts = both(monkeypatch, lambda: population(**outer), **settings)
    assert torch.allclose(part.params, whole.params, rtol=0, atol=1e-12)
    assert torch.allclose(part.phi, whole.phi, rtol=0, atol=1e-12)
    assert all(torch.allclose(part.buffers[k], b, rtol=0, atol=1e-12) for k, b in whole.buffers.items())
    assert part.reasons == whole.reasons
    assert set(counts) == {6, 3, 1}  # 5 and 4 run, then 2, then 1
    losses = history["inner_loss"]
    assert losses.shape == (6, MEMBERS)
    assert losses[:, STEPS > 0].isfinite().all()
    assert torch.equal(losses[1:, 0], losses[:1, 0].expand(5))  # done after one step


def test_traced_runs_trace_the_smaller_populations(monkeypatch):
    settings = {"outer_steps": STEPS, "compile": "trace", "inner_optimizer": Adam(INNER)}
    make = lambda: Population([problem(mlp(s), seed=s) for s in range(MEMBERS)])  # noqa: E731
    whole, part, _ = both(monkeypatch, make, **settings)
    assert torch.allclose(part.params, whole.params, rtol=0, atol=1e-12)
    assert torch.allclose(part.phi, whole.phi, rtol=0, atol=1e-12)


def test_early_stopping_saves_work(monkeypatch):
    def settings():
        return {"outer_steps": 30, "callbacks": [EarlyStopping(patience=2, min_delta=0.03), History()]}

    make = lambda: Population([problem(mlp(s), seed=s) for s in range(8)])  # noqa: E731
    whole, part, counts = both(monkeypatch, make, **settings())
    assert torch.allclose(part.params, whole.params, rtol=0, atol=1e-12)
    assert part.reasons == whole.reasons
    assert min(counts) < 8


def test_tied_groups_go_on_when_most_members_are_done(monkeypatch):
    make = lambda: Population(  # noqa: E731
        [problem(mlp(s), seed=s) for s in range(MEMBERS)], tied=[0, 0, 1, 1, 0, 1]
    )
    whole, part, counts = both(monkeypatch, make, outer_steps=STEPS)
    assert torch.allclose(part.phi, whole.phi, rtol=0, atol=1e-12)
    assert torch.allclose(part.params, whole.params, rtol=0, atol=1e-12)
    assert min(counts) == 1


def test_a_resumed_run_computes_the_same_members(tmp_path):
    path = tmp_path / "run.safetensors"
    long, short = STEPS, STEPS.clamp_max(3)
    histories = [History(), History(), History()]
    whole = run(population(), outer_steps=long, callbacks=[histories[0]])
    run(population(), outer_steps=short, callbacks=[histories[1], Checkpoint(path, every=2)])
    resumed = run(population(), outer_steps=long, callbacks=[histories[2], Checkpoint(path, every=99)], resume=path)
    assert torch.equal(resumed.params, whole.params)
    assert torch.equal(resumed.phi, whole.phi)
    assert torch.equal(histories[2]["outer_loss"].nan_to_num(), histories[0]["outer_loss"].nan_to_num())


def test_learned_starting_points_are_computed_as_a_whole(monkeypatch):
    def make():
        return Population([problem(mlp(s), seed=s, outer=InitialPoint(mlp(s))) for s in range(MEMBERS)])

    whole, part, counts = both(monkeypatch, make, outer_steps=STEPS, restart=True, outer_optimizer=SGD(0.1))
    assert torch.equal(part.phi, whole.phi)
    assert set(counts) == {MEMBERS}
