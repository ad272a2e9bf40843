"""Tests of killed commands: they continue and end with the same result, and two commands at once lose nothing."""

import itertools
import multiprocessing
import random
import time
from functools import partial

import pytest

from studies.bo4sc import study
from studies.common.store import Store
from studies.report import read_results
from tests.studies import tiny
from tests.studies.cases import TINY

COSTS = ("seconds", "peak_memory", "members", "date", "command", "machine", "other_runs")


@pytest.fixture(scope="module")
def start():
    """Start a command in a separate process that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.studies.tiny"])

    def run(command, out, **options):
        child = context.Process(target=command, args=(out,), kwargs=options)
        child.start()
        return child

    return run


def told(folder):
    """What a result file says, without times, memory, and what differs between two calls of one command."""
    results = read_results(folder / "results.json")
    config = {name: value for name, value in results.config.items() if name not in COSTS}
    return config, [{name: value for name, value in record.items() if name not in COSTS} for record in results.records]


def finish(child):
    child.join(300)
    assert child.exitcode == 0


def kill_and_go_on(start, command, folder, kills, most=5):
    """Kill a command at random moments and restart it; every folder must end like that of an uninterrupted command."""
    begin = time.perf_counter()
    finish(start(command, folder / "whole"))
    length = time.perf_counter() - begin
    expected = told(folder / "whole")
    assert expected[1]
    done, folders = 0, itertools.count()
    while done < kills:
        out = folder / f"killed-{next(folders)}"
        for _ in range(min(most, kills - done)):
            child = start(command, out)
            child.join(random.uniform(0, 0.7 * length))
            if child.exitcode is not None:
                assert child.exitcode == 0
                break
            child.kill()
            child.join()
            done += 1
        before = {name: line["date"] for name, line in Store(out).current.items()}
        finish(start(command, out))
        assert {name: line["date"] for name, line in Store(out).current.items()}.items() >= before.items()
        config, records = told(out)
        assert config == expected[0]
        assert len(records) == len(expected[1])
        for found, known in zip(records, expected[1], strict=True):
            assert found.keys() == known.keys()
            for name, value in known.items():
                close = pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value
                assert found[name] == close, name


def test_a_killed_command_goes_on(start, tmp_path):
    small = partial(tiny.reproduce, methods=["standard", "temperature", "bo4sc"], seeds=1)
    kill_and_go_on(start, small, tmp_path, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("command", [tiny.reproduce, tiny.bench], ids=lambda command: command.__name__)
def test_twenty_kills(start, command, tmp_path):
    kill_and_go_on(start, command, tmp_path, kills=20)


def test_two_runs_on_one_folder_lose_nothing(start, tmp_path):
    """Each runs its own methods, as when several processes share a long study."""
    out = tmp_path / "out"
    first, second = list(TINY)[:3], list(TINY)[3:]
    children = [start(tiny.reproduce, out, methods=names) for names in (first, second)]
    for child in children:
        finish(child)
    records = read_results(out / "results.json").records
    assert {r["method"] for r in records} == {*TINY, "standard-matched"}
    assert len(records) == 2 * (len(TINY) + 1)
    assert records == study.STUDY.contents(Store(out)).records


@pytest.mark.slow
def test_two_runs_of_one_command_lose_nothing(start, tmp_path):
    finish(start(tiny.reproduce, tmp_path / "whole"))
    for child in [start(tiny.reproduce, tmp_path / "out") for _ in range(3)]:
        finish(child)
    assert told(tmp_path / "out") == told(tmp_path / "whole")
