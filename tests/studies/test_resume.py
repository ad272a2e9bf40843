"""An interrupted or killed command continues, and ends with the same records as an uninterrupted one."""

import itertools
import multiprocessing
import random
import time
from functools import partial

import pytest
import torch

from studies.bo4sc import grid, study
from studies.common.store import Store
from studies.report import read_results
from tests.studies.cases import TINY, tiny_reproduce

COSTS = ("seconds", "peak_memory", "members", "date", "command", "machine", "other_runs")


def content(folder):
    """What a result file says, without times, memory, and what differs between two calls of one command."""
    results = read_results(folder / "results.json")
    config = {name: value for name, value in results.config.items() if name not in COSTS}
    return config, [{name: value for name, value in record.items() if name not in COSTS} for record in results.records]


def records(folder):
    return content(folder)[1]


def test_records_are_on_disk_when_their_population_ends(tmp_path, monkeypatch):
    """The third population is interrupted. Those before it are kept, and only the rest is trained again."""
    trained = []

    def run_all(plan, **options):
        trained.append([name for name, *_ in plan])
        if len(trained) == 3:
            raise KeyboardInterrupt
        return real(plan, **options)

    from studies.common import runs

    real = runs.run_all
    monkeypatch.setattr(runs, "run_all", run_all)
    small = {"sets": ("bac",), "seeds": 1}
    with pytest.raises(KeyboardInterrupt):
        tiny_reproduce(tmp_path, **small)
    assert trained[:2] == [["standard", "temperature", "standard-matched"], ["standard-stopped"]]
    assert len(Store(tmp_path).current) == 4
    tiny_reproduce(tmp_path, **small)
    assert trained[3:] == [["bo4sc"], ["self-calibrated"]]
    assert len(records(tmp_path)) == 6


def test_smaller_commands_keep_records_and_larger_ones_add_them(tmp_path, capsys):
    small = {"sets": ("bac",), "seeds": 2, "methods": ["standard", "standard-stopped"]}
    tiny_reproduce(tmp_path, **small)
    before = records(tmp_path)
    tiny_reproduce(tmp_path, **small | {"methods": ["standard"], "seeds": 1})
    assert records(tmp_path) == before
    assert "Found 1 of 1 run in" in capsys.readouterr().err
    page = tiny_reproduce(tmp_path, **small | {"methods": ["standard", "bo4sc"], "seeds": 1, "sets": ("blobs-1.7",)})
    after = records(tmp_path)
    assert [r for r in after if r["dataset"] == "bac"] == before
    assert [(r["method"], r["seed"]) for r in after if r["dataset"] == "blobs-1.7"] == [
        (name, 0) for name in ("standard", "standard-matched", "bo4sc")
    ]
    assert "blobs-1.7" in page.read_text()
    config = read_results(tmp_path / "results.json").config
    assert (list(config["settings"]), config["seeds"]) == (["bac", "blobs-1.7"], 2)
    assert list(config["methods"]) == ["standard", "standard-stopped", "standard-matched", "bo4sc"]


def test_a_grid_that_grows_trains_what_is_new(tmp_path, monkeypatch):
    searched = []

    class Search(grid.Search):
        def __call__(self):
            searched.extend((key["outer_learning_rate"], key["epochs"]) for key in self.keys)
            return super().__call__()

    monkeypatch.setattr(grid, "Search", Search)
    grids = {"steps": [2], "alpha": [30.0], "width": [8], "epochs": [4], "learning_rate": [0.02]}
    usual = grids | {"out": tmp_path, "device": "cpu", "sets": ("bac",)}
    grid.STUDY.run(**usual, outer_learning_rate=[100.0], seeds=1)
    grid.STUDY.run(**usual, outer_learning_rate=[100, 3000.0], seeds=1)
    grid.STUDY.run(**usual, outer_learning_rate=[100.0], seeds=1)
    assert searched == [(100.0, 4), (3000.0, 4)]
    results = read_results(tmp_path / "results.json")
    rates = [r["outer_learning_rate"] for r in results.records]
    assert rates == results.config["grid"]["outer_learning_rate"] == [100.0, 3000.0]
    grid.STUDY.run(**usual, outer_learning_rate=[100.0], seeds=2)
    assert searched[2:] == [(100.0, 4)]
    assert len(records(tmp_path)) == 1  # the mean of one seed is not comparable


def reproduce(out, **options):
    """A command with instant methods, in a process of its own."""
    torch.set_num_threads(1)
    tiny_reproduce(out, **{"sets": ("bac",)} | options)


@pytest.fixture(scope="module")
def start():
    """Start a command in a separate process that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.studies.test_resume"])

    def run(out, **options):
        child = context.Process(target=reproduce, args=(out,), kwargs=options)
        child.start()
        return child

    return run


def finish(child):
    child.join(300)
    assert child.exitcode == 0


def kill_and_go_on(start, folder, kills, most=5):
    """Kill a command at random moments and restart it; every folder must end like that of an uninterrupted command."""
    begin = time.perf_counter()
    finish(start(folder / "whole"))
    length = time.perf_counter() - begin
    expected_config, expected = content(folder / "whole")
    assert expected
    done, folders = 0, itertools.count()
    while done < kills:
        out = folder / f"killed-{next(folders)}"
        for _ in range(min(most, kills - done)):
            child = start(out)
            child.join(random.uniform(0, 0.7 * length))
            if child.exitcode is not None:
                assert child.exitcode == 0
                break
            child.kill()
            child.join()
            done += 1
        before = {name: line["date"] for name, line in Store(out).current.items()}
        finish(start(out))
        assert {name: line["date"] for name, line in Store(out).current.items()}.items() >= before.items()
        config, records = content(out)
        assert config == expected_config
        for record, other in zip(records, expected, strict=True):
            assert record.keys() == other.keys()
            for name, value in other.items():
                close = pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value
                assert record[name] == close, name


def test_a_killed_command_goes_on(start, tmp_path):
    small = partial(start, methods=["standard", "temperature", "bo4sc"], seeds=1)
    kill_and_go_on(small, tmp_path, kills=1)


@pytest.mark.slow
def test_twenty_kills(start, tmp_path):
    kill_and_go_on(start, tmp_path, kills=20)


def test_two_runs_on_one_folder_lose_nothing(start, tmp_path):
    """Each runs its own methods, as when several processes share a long study."""
    out = tmp_path / "out"
    for child in [start(out, methods=names) for names in (list(TINY)[:3], list(TINY)[3:])]:
        finish(child)
    records = read_results(out / "results.json").records
    assert {r["method"] for r in records} == {*TINY, "standard-matched"}
    assert len(records) == 2 * (len(TINY) + 1)
    assert records == study.STUDY.contents(Store(out)).records


@pytest.mark.slow
def test_two_runs_of_one_command_lose_nothing(start, tmp_path):
    finish(start(tmp_path / "whole"))
    for child in [start(tmp_path / "out") for _ in range(3)]:
        finish(child)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
