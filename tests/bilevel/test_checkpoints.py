"""Runs that are interrupted and resumed from a checkpoint, and checkpoints that are refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.base.files import write_container
from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    Callback,
    Checkpoint,
    EarlyStopping,
    GroupedOptimizer,
    History,
    Implicit,
    OneStep,
    Population,
    Unrolled,
)
from calibrant.data import Indexed
from tests.bilevel.loop_cases import SAMPLES, blobs, hidden_dropout, mlp, population, problem, rich_mlp, run


class Broken(Exception):
    pass


class BreakOff(Callback):
    """Ends a run in the middle of a step's callbacks, as a lost machine would."""

    last = True

    def __init__(self, at):
        self.at = at

    def on_step(self, run):
        if run.step == self.at:
            raise Broken


def loader(**kwargs):
    return DataLoader(Indexed(TensorDataset(*blobs())), batch_size=6, shuffle=True, **kwargs)


CASES = {
    "full batch": problem,
    "mini-batch": lambda: problem(batch_size=7),
    "batch norm and dropout": lambda: problem(rich_mlp(), batch_size=7, val_batch_size=8),
    "dropout by seeding": lambda: problem(hidden_dropout(), batch_size=7),
    "loader": lambda: problem(train=loader()),
    "loader with a generator": lambda: problem(rich_mlp(), train=loader(generator=torch.Generator())),
    "loaders in both levels": lambda: problem(
        train=loader(), val=DataLoader(TensorDataset(*blobs(9)), batch_size=6, shuffle=True)
    ),
    "population": lambda: population(rich_mlp, batch_size=7),
    "population of loaders": lambda: Population([problem(mlp(s), seed=s, train=loader()) for s in range(2)]),
}


def broken_off_and_resumed(case, tmp_path, at, **settings):
    """One run without interruption, and one that was interrupted after step ``at``."""

    def callbacks(*more):
        return [History(phi_every=1), EarlyStopping(patience=50), Checkpoint(path, every=1), *more]

    path = tmp_path / "whole.safetensors"
    whole = callbacks()
    expected = run(case(), callbacks=whole, **settings)
    path = tmp_path / "broken.safetensors"
    with pytest.raises(Broken):
        run(case(), callbacks=callbacks(BreakOff(at)), **settings)
    torch.manual_seed(at)  # another process, another state of the global generator
    again = callbacks(BreakOff(-1))
    resumed = run(case(), callbacks=again, resume=path, **settings)
    return expected, whole, resumed, again


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_bit_identical(case, at, tmp_path):
    expected, whole, resumed, again = broken_off_and_resumed(
        CASES[case], tmp_path, at, outer_optimizer=Adam(0.05), outer_steps=5
    )
    assert torch.equal(resumed.params, expected.params)
    assert torch.equal(resumed.phi, expected.phi)
    assert all(torch.equal(b, expected.buffers[k]) for k, b in resumed.buffers.items())
    assert resumed.outer_steps == expected.outer_steps == 5
    assert resumed.reasons == expected.reasons
    for name in ("inner_loss", "outer_loss", "gradient_norm", "phi"):
        assert torch.equal(again[0][name], whole[0][name])
    assert torch.equal(again[1].best, whole[1].best)
    assert torch.equal(again[1].best_step, whole[1].best_step)


@pytest.mark.parametrize(
    "settings",
    [
        {"hypergradient": OneStep(3), "inner_optimizer": SGD(0.1, momentum=0.9)},
        {"hypergradient": OneStep(2, "head")},
        {"hypergradient": Implicit(2, "head", batches=3)},
        {"hypergradient": Implicit(2, "head", batches=3, first="outer")},
        {"hypergradient": Unrolled(5, memory="checkpoints"), "restart": True},
        {"compile": "trace", "outer_steps": 3},
    ],
    ids=["one step", "head", "solved", "solved, outer first", "restart", "trace"],
)
def test_every_kind_of_step_can_be_resumed(settings, tmp_path):
    expected, _, resumed, _ = broken_off_and_resumed(
        lambda: problem(rich_mlp(), batch_size=10), tmp_path, 2, **settings
    )
    assert torch.equal(resumed.params, expected.params)
    assert torch.equal(resumed.phi, expected.phi)


def test_stopped_and_failed_members_survive_a_checkpoint(tmp_path):
    def case():
        x, y = blobs(50)
        members = [problem(mlp(seed), seed=seed) for seed in range(3)]
        members[1] = problem(mlp(1), seed=1, train=(torch.full_like(x, float("nan")), y))
        return Population(members)

    budget = torch.tensor([2, 5, 5])
    expected, _, resumed, _ = broken_off_and_resumed(case, tmp_path, 3, outer_steps=budget)
    assert resumed.failures == expected.failures
    assert set(resumed.failures) == {1}
    assert resumed.reasons == expected.reasons
    assert torch.equal(resumed.params, expected.params)
    assert torch.equal(resumed.phi, expected.phi)


def test_a_finished_run_can_be_made_longer(tmp_path):
    path = tmp_path / "run.safetensors"
    run(problem(batch_size=7), outer_steps=2, callbacks=[Checkpoint(path, every=1)])
    longer = run(problem(batch_size=7), outer_steps=5, callbacks=[Checkpoint(path, every=1)], resume=path)
    assert torch.equal(longer.phi, run(problem(batch_size=7), outer_steps=5).phi)


def test_checkpoints_come_every_few_steps(tmp_path):
    path = tmp_path / "deep" / "run.safetensors"
    run(problem(), outer_steps=5, callbacks=[Checkpoint(path, every=3)])
    solution = run(problem(), outer_steps=3, callbacks=[Checkpoint(path, every=3)], resume=path)
    assert solution.outer_steps == 3
    assert [p.name for p in path.parent.iterdir()] == ["run.safetensors"]  # no partial file is left
    with pytest.raises(ValueError, match="at least 1"):
        Checkpoint(path, every=0)


def test_foreign_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        run(problem(), resume=tmp_path / "nothing")
    text = tmp_path / "text"
    text.write_text("no tensors in here")
    with pytest.raises(ValueError, match="not a Calibrant checkpoint"):
        run(problem(), resume=text)
    weights = tmp_path / "weights.safetensors"
    save_file({"w": torch.ones(2)}, weights)
    with pytest.raises(ValueError, match="got None"):
        run(problem(), resume=weights)
    newer = tmp_path / "newer.safetensors"
    write_container(newer, json.dumps({"format": "calibrant-run-9", "run": {}}), {"w": np.ones(2)})
    with pytest.raises(ValueError, match="calibrant-run-9"):
        run(problem(), resume=newer)


def test_every_changed_byte_of_a_checkpoint_is_noticed(tmp_path):
    path = tmp_path / "run.safetensors"
    run(problem(batch_size=7), outer_steps=2, callbacks=[Checkpoint(path, every=1)])
    whole = path.read_bytes()
    for place in {*range(0, len(whole), 97), len(whole) - 1}:
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"is damaged|not a Calibrant checkpoint|The format of"):
            run(problem(batch_size=7), outer_steps=3, resume=path)
    path.write_bytes(whole[:-3])
    with pytest.raises(ValueError, match="was cut off"):
        run(problem(batch_size=7), outer_steps=3, resume=path)


FIRST_RUN = "the problem and the optimisers of the first run"
OTHERS = {
    "a wider network": (lambda: problem(nn.Linear(2, 3).double()), {}, FIRST_RUN),
    "other outer variables": (lambda: problem(outer=L2(mlp())), {}, FIRST_RUN),
    "another precision": (lambda: problem(mlp(dtype=torch.float32)), {}, "float64.*float32"),
    "a population": (population, {}, FIRST_RUN),
    "another hypergradient": (problem, {"hypergradient": Unrolled(5)}, "settings of the first run"),
    "another inner optimiser": (problem, {"inner_optimizer": SGD(0.1)}, FIRST_RUN),
    "another outer optimiser": (problem, {"outer_optimizer": Adam(0.1)}, FIRST_RUN),
    "other callbacks": (problem, {"callbacks": [History()]}, r"\['Checkpoint'\].*\['History'\]"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_checkpoints_of_other_runs_are_refused(case, tmp_path):
    path = tmp_path / "run.safetensors"
    run(problem(), outer_steps=1, callbacks=[Checkpoint(path, every=1)])
    make, settings, sentence = OTHERS[case]
    with pytest.raises(ValueError, match=sentence):
        run(make(), resume=path, **({"callbacks": [Checkpoint(path)]} | settings))


def shifted(seed=0):
    x, y = blobs(seed)
    return x + 1e-3, y


def relabelled():
    x, y = blobs()
    y[7] = (y[7] + 1) % 3
    return x, y


def in_order(size=4, seed=0):
    return DataLoader(Indexed(TensorDataset(*blobs(seed))), batch_size=size)


NOW = "is now"
ALTERED = {
    "inner rate": ({}, {"inner_optimizer": Adam(0.03)}, f"inner_optimizer.learning_rate was 0.02 and {NOW} 0.03"),
    "inner decay": ({}, {"inner_optimizer": Adam(0.02, weight_decay=0.1)}, "inner_optimizer.weight_decay was 0.0"),
    "betas": ({}, {"inner_optimizer": Adam(0.02, betas=(0.8, 0.999))}, f"inner_optimizer.betas was 0.9 and {NOW} 0.8"),
    "outer rate": ({}, {"outer_optimizer": SGD(4.0)}, f"outer_optimizer.learning_rate was 5.0 and {NOW} 4.0"),
    "schedule": ({}, {"outer_optimizer": SGD(lambda step: 5.0 / step)}, "outer_optimizer.learning_rate was 5.0"),
    "clipping": ({}, {"clip_norm": 1e-3}, f"clip_norm was None and {NOW} 0.001"),
    "restart": ({}, {"restart": True}, f"restart was False and {NOW} True"),
    "seed": ({"seed": 1, "train": blobs(), "val": blobs(100)}, {}, f"seed was 0 and {NOW} 1"),
    "batch size": ({"batch_size": 5}, {}, f"train.batch_size was None and {NOW} 5"),
    "validation batch size": ({"val_batch_size": 5}, {}, f"val.batch_size was None and {NOW} 5"),
    "training inputs": ({"train": shifted()}, {}, r"train.inputs was shape .* with checksum"),
    "one training label": (
        {"train": relabelled()},
        {},
        r"train.targets was shape .* with checksum",
    ),
    "validation data": ({"val": shifted(100)}, {}, r"val.inputs was shape .* with checksum"),
    "fewer validation samples": ({"val": blobs(100, samples=12)}, {}, r"val.inputs was shape \(20, 2\).*\(12, 2\)"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_other_settings_or_data_are_refused_by_name(case, tmp_path):
    path = tmp_path / "run.safetensors"
    changes, settings, sentence = ALTERED[case]
    run(problem(), outer_steps=2, callbacks=[Checkpoint(path, every=1)])
    with pytest.raises(ValueError, match=f"{sentence}.*Resume with those of the first run"):
        run(problem(mlp(), **changes), resume=path, **({"callbacks": [Checkpoint(path)]} | settings))


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (lambda: in_order(5), f"train.batch_size was 4 and {NOW} 5"),
        (lambda: in_order(seed=1), r"train.inputs was shape .* with checksum"),
    ],
)
def test_other_loaders_are_refused(other, sentence, tmp_path):
    path = tmp_path / "run.safetensors"
    run(problem(train=in_order()), outer_steps=2, callbacks=[Checkpoint(path, every=2)])
    with pytest.raises(ValueError, match=sentence):
        run(problem(train=other()), resume=path, callbacks=[Checkpoint(path)])
    run(problem(train=in_order()), resume=path, callbacks=[Checkpoint(path)])


def test_schedules_and_members_settings_are_compared_by_value(tmp_path):
    path = tmp_path / "run.safetensors"

    def members(rates, seed=1):
        first = problem()
        population = Population([first, first.replicate(seed=seed, train=blobs(seed))])
        optimizer = GroupedOptimizer(parts=((SAMPLES, SGD(lambda step: torch.tensor(rates) / step)),))
        run(population, outer_optimizer=optimizer, resume=path if path.exists() else None, **settings)

    settings = {"outer_steps": 2, "callbacks": [Checkpoint(path, every=1)]}
    members([1.0, 2.0])
    members([1.0, 2.0])
    with pytest.raises(ValueError, match=r"parts.0.learning_rate was \[1.0, 2.0\] and is now \[1.0, 3.0\]"):
        members([1.0, 3.0])
    with pytest.raises(ValueError, match=r"seed was 1 and is now 2.*train.inputs was shape .* with checksum"):
        members([1.0, 2.0], seed=2)


def test_layers_with_state_are_checked_too(tmp_path):
    path = tmp_path / "run.safetensors"
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double()
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False)).double()
    run(problem(plain), outer_steps=1, callbacks=[Checkpoint(path, every=1)])
    with pytest.raises(ValueError, match="nothing for buffer"):
        run(problem(norm), callbacks=[Checkpoint(path)], resume=path)
