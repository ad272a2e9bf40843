"""Tests of callbacks, and of runs that are interrupted and resumed."""

import builtins
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    Bilevel,
    Callback,
    Checkpoint,
    EarlyStopping,
    GroupedOptimizer,
    History,
    NonFiniteError,
    OneStep,
    Plain,
    Population,
    ProgressBar,
    SampleWeights,
    Unrolled,
    solve,
)
from calibrant.bilevel.run import Run
from calibrant.data import Indexed, TensorStream
from tests.bilevel.loop_cases import SAMPLES, blobs, hidden_dropout, mlp, problem, rich_mlp, run


def population(make=mlp, **kwargs):
    return Population([problem(make(seed), seed=seed, **kwargs) for seed in range(3)])


def test_history_has_a_row_an_outer_step():
    history = History(phi_every=2)
    run(problem(), outer_steps=5, callbacks=[history])
    assert history["inner_loss"].shape == history["outer_loss"].shape == history["gradient_norm"].shape == (5,)
    assert history["phi"].shape == (3, SAMPLES)  # before the first step, and after 2 and 4
    assert torch.equal(history["phi"][0], problem().initial_phi())


def test_history_of_a_population_has_a_column_a_member():
    history = History(phi_every=1)
    run(population(), outer_steps=2, callbacks=[history])
    assert history["inner_loss"].shape == history["outer_loss"].shape == history["gradient_norm"].shape == (2, 3)
    assert history["phi"].shape == (3, 3, SAMPLES)


def test_history_of_plain_training_has_no_outer_rows():
    history = History()
    solve(problem(), hypergradient=Plain(3), inner_optimizer=SGD(0.1), outer_steps=4, callbacks=[history])
    assert history["inner_loss"].shape == (4,)
    assert history["outer_loss"].numel() == history["gradient_norm"].numel() == history["phi"].numel() == 0


def test_a_callback_used_again_begins_anew():
    history, stopping = History(phi_every=1), EarlyStopping(scripted([[1.0], [0.5], [2.0], [3.0]]))
    run(problem(), outer_steps=2, callbacks=[history, stopping])
    run(problem(), outer_steps=2, callbacks=[history, stopping])
    assert len(history["inner_loss"]) == 2
    assert len(history["phi"]) == 3
    assert stopping.best.tolist() == [2.0]


def scripted(rows):
    """A criterion that reads its values from a list, one row per outer step."""
    rows = iter(rows)
    return lambda run: torch.tensor(next(rows))


class States(Callback):
    def __init__(self):
        self.params, self.phi = [], []

    def on_step(self, run):
        self.params.append(run.state.params)
        self.phi.append(run.phi)


def test_early_stopping_stops_and_returns_to_the_best_step():
    values = [[5.0], [3.0], [4.0], [3.0], [2.99], [9.0]]  # 2.99 is no improvement by more than 0.1
    states, stopping = States(), EarlyStopping(scripted(values), patience=3, min_delta=0.1)
    solution = run(problem(), outer_steps=50, callbacks=[states, stopping])
    assert solution.outer_steps == 5
    assert solution.reasons == {0: "no improvement for 3 outer steps"}
    assert stopping.best_step.tolist() == [2]
    assert torch.equal(solution.params, states.params[1])
    assert torch.equal(solution.phi, states.phi[1])


def test_a_criterion_of_nan_is_an_error():
    with pytest.raises(NonFiniteError, match="criterion of early stopping was NaN after outer step 2"):
        run(problem(), outer_steps=9, callbacks=[EarlyStopping(scripted([[1.0], [float("nan")]]))])
    rows = [[1.0, float("nan"), 1.0], [0.5, 0.1, 0.5]]
    solution = run(population(), outer_steps=2, callbacks=[EarlyStopping(scripted(rows))])
    assert set(solution.failures) == {1}
    assert "was NaN after outer step 1" in solution.failures[1]
    assert solution.params.isfinite().all()


def test_early_stopping_may_keep_the_last_state():
    states, stopping = States(), EarlyStopping(scripted([[1.0], [2.0], [3.0]]), patience=2, restore_best=False)
    solution = run(problem(), outer_steps=50, callbacks=[states, stopping])
    assert solution.outer_steps == 3
    assert torch.equal(solution.params, states.params[-1])


def test_without_patience_the_best_state_is_only_remembered():
    states, stopping = States(), EarlyStopping(scripted([[2.0], [1.0], [3.0], [4.0]]), patience=None)
    solution = run(problem(), outer_steps=4, callbacks=[states, stopping])
    assert solution.outer_steps == 4
    assert torch.equal(solution.params, states.params[1])


def test_early_stopping_evaluates_every_few_steps():
    asked = []

    def criterion(run):
        asked.append(run.step)
        return torch.tensor(float(run.step))

    solution = run(problem(), outer_steps=20, callbacks=[EarlyStopping(criterion, patience=4, every=2)])
    assert asked == [2, 4, 6]
    assert solution.outer_steps == 6


def test_the_default_criterion_is_the_outer_loss_after_training():
    case, stopping = problem(), EarlyStopping()
    solution = run(case, callbacks=[stopping], outer_steps=3)
    value = case.outer(solution.params, solution.buffers, solution.phi, case.val_batch(0))[0]
    assert torch.allclose(value, stopping.best, rtol=1e-12)


def test_early_stopping_compares_one_batch_of_a_validation_loader():
    loader = DataLoader(TensorDataset(*blobs(100)), batch_size=5, shuffle=True)
    stopping = EarlyStopping()
    solution = run(problem(val=loader), callbacks=[stopping], outer_steps=6)
    assert solution.outer_steps == 6
    assert stopping.best.isfinite().all()


def test_members_stop_each_on_its_own():
    rows = [[1.0, 9.0, 5.0], [2.0, 8.0, 4.0], [3.0, 7.0, 6.0], [0.0, 6.0, 7.0], [0.0, 5.0, 0.0]]
    states, stopping = States(), EarlyStopping(scripted(rows), patience=2)
    solution = run(population(), outer_steps=5, callbacks=[states, stopping])
    assert solution.reasons == {
        0: "no improvement for 2 outer steps",
        1: "all outer steps done",
        2: "no improvement for 2 outer steps",
    }
    assert stopping.best_step.tolist() == [1, 5, 2]  # values after a member stopped do not count
    for member, best in enumerate((0, 4, 1)):
        assert torch.equal(solution.params[member], states.params[best][member])
        assert torch.equal(solution.phi[member], states.phi[best][member])
    assert torch.equal(states.params[2][0], states.params[4][0])  # a stopped member rests


@pytest.mark.parametrize("rich", [True, False])
def test_the_progress_bar_writes_to_standard_error(rich, monkeypatch, capsys):
    if rich:
        pytest.importorskip("rich")
    else:
        real = builtins.__import__

        def fake(name, *args, **kwargs):
            if name.startswith("rich"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", fake)
    run(problem(), outer_steps=3, callbacks=[ProgressBar("weights", force=True)])
    out, err = capsys.readouterr()
    assert out == ""
    assert "weights" in err
    assert "3/3" in err
    run(population(), outer_steps=2, callbacks=[ProgressBar(force=True)])
    assert "3/3 members" in capsys.readouterr().err.replace("\n", " ")
    solve(
        problem(),
        hypergradient=Plain(2),
        inner_optimizer=SGD(0.1),
        outer_steps=1,
        callbacks=[ProgressBar(force=True)],
    )
    assert "outer" not in capsys.readouterr().err


def test_the_progress_bar_is_silent_off_a_terminal(capsys):
    run(problem(), callbacks=[ProgressBar()])
    assert capsys.readouterr() == ("", "")


def test_the_progress_bar_is_closed_after_an_error(capsys):
    x, y = blobs()
    bar = ProgressBar(force=True)
    with pytest.raises(NonFiniteError):
        run(problem(train=(x * float("nan"), y)), callbacks=[bar])
    assert bar._bar is None


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
    "dropout in both levels": lambda: problem(rich_mlp(), batch_size=7, outer_mode="train"),
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
        {"hypergradient": Unrolled(5, memory="checkpoints"), "restart": True},
        {"compile": "trace", "outer_steps": 3},
    ],
    ids=["one step", "head", "restart", "trace"],
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
    save_file({"w": torch.ones(2)}, newer, metadata={"format": "calibrant-run-9", "run": json.dumps({})})
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


def test_a_checkpoint_without_a_checksum_is_still_read(tmp_path):
    """Runs of the version before were saved in the safetensors library's own layout."""
    path = tmp_path / "run.safetensors"
    run(problem(batch_size=7), outer_steps=2, callbacks=[Checkpoint(path, every=1)])
    with safe_open(str(path), framework="pt") as file:
        content = json.loads(file.metadata()["calibrant"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"format": "calibrant-run-2", "run": json.dumps(content["run"])})
    longer = run(problem(batch_size=7), outer_steps=4, callbacks=[Checkpoint(path, every=1)], resume=path)
    assert torch.equal(longer.phi, run(problem(batch_size=7), outer_steps=4).phi)


FIRST_RUN = "the problem and the optimisers of the first run"
OTHERS = {
    "a wider network": (
        lambda: problem(nn.Linear(2, 3).double()),
        {},
        FIRST_RUN,
    ),
    "other outer variables": (lambda: problem(outer=L2(mlp())), {}, FIRST_RUN),
    "another precision": (lambda: problem(mlp(dtype=torch.float32)), {}, "float64.*float32"),
    "a population": (population, {}, FIRST_RUN),
    "another hypergradient": (problem, {"hypergradient": Unrolled(5)}, "settings of the first run"),
    "another inner optimiser": (
        problem,
        {"inner_optimizer": SGD(0.1)},
        FIRST_RUN,
    ),
    "another outer optimiser": (
        problem,
        {"outer_optimizer": Adam(0.1)},
        FIRST_RUN,
    ),
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
    "outer mode": ({"outer_mode": "train"}, {}, f"outer_mode was eval and {NOW} train"),
    "training inputs": ({"train": shifted()}, {}, "train.inputs has other values"),
    "one training label": ({"train": relabelled()}, {}, "train.targets has other values"),
    "validation data": ({"val": shifted(100)}, {}, "val.inputs has other values"),
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
        (lambda: in_order(seed=1), "train.inputs has other values"),
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
    with pytest.raises(ValueError, match=r"outer_optimizer.parts.0.learning_rate was 2.0 and is now 3.0"):
        members([1.0, 3.0])
    with pytest.raises(ValueError, match=r"seed was 1 and is now 2.*train.inputs has other values"):
        members([1.0, 2.0], seed=2)


def test_further_state_of_a_run_is_kept(tmp_path, monkeypatch):
    path, seen = tmp_path / "run.safetensors", []
    monkeypatch.setattr(Run, "extra_tensors", lambda self: {"features": torch.full((self.step, 2), 3.0)})
    monkeypatch.setattr(Run, "load_extra_tensors", lambda self, tensors: seen.append(tensors["features"]))
    run(problem(), outer_steps=3, callbacks=[Checkpoint(path, every=1)])
    run(problem(), outer_steps=4, callbacks=[Checkpoint(path, every=1)], resume=path)
    assert torch.equal(seen[0], torch.full((3, 2), 3.0))


def test_layers_with_state_are_checked_too(tmp_path):
    path = tmp_path / "run.safetensors"
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double()
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False)).double()
    run(problem(plain), outer_steps=1, callbacks=[Checkpoint(path, every=1)])
    with pytest.raises(ValueError, match="nothing for buffer"):
        run(problem(norm), callbacks=[Checkpoint(path)], resume=path)


def test_loaders_that_name_no_sample_are_refused():
    with pytest.raises(ValueError, match=r"calibrant\.data\.Indexed"):
        Bilevel(mlp(), SampleWeights(SAMPLES), train=DataLoader(TensorDataset(*blobs()), batch_size=4))


@pytest.mark.parametrize("form", ["mini-batches", "loader"])
def test_early_stopping_looks_at_all_validation_data(form):
    """It must not be noticed only at the first batch."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 2, generator=generator), torch.randint(0, 2, (50,), generator=generator)
    whole = (x[20:], y[20:])
    val = DataLoader(TensorDataset(*whole), batch_size=8) if form == "loader" else TensorStream(*whole, batch_size=8)
    seen = []

    class Look(EarlyStopping):
        def _outer_loss(self, run):
            seen.append(super()._outer_loss(run).item())
            return super()._outer_loss(run)

    stopping = Look(patience=None, restore_best=False)
    problem = Bilevel(nn.Linear(2, 2), train=(x[:20], y[:20]), val=val)
    solution = solve(problem, hypergradient=Plain(2), inner_optimizer=Adam(0.1), outer_steps=2, callbacks=[stopping])
    expected = torch.nn.functional.cross_entropy(solution.logits(whole[0]), whole[1])
    assert seen[-1] == pytest.approx(expected.item(), abs=1e-6)
