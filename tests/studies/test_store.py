"""The store: incomplete lines, several processes at once, and records that are out of date."""

import doctest
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from studies.bo4sc.ablation import STUDY as ABLATION
from studies.bo4sc.study import STUDY as BO4SC
from studies.common import store as store_module
from studies.common.keys import make_key
from studies.common.store import BESIDE, Store, combined, origin
from studies.common.study import begin
from studies.report import Results, read_results, write_results

SOURCE = Path(__file__).parents[2] / "src"


def run(seed, method="standard", settings="a", code="1"):
    return make_key(settings=settings, code=code, dataset="bac", method=method, seed=seed)


def python(code, *arguments):
    """Start another process with this code."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], env=environment, stdout=subprocess.PIPE
    )


def lines_of(store):
    return [json.loads(line) for line in store.path.read_text().splitlines()]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_every_record_is_one_line_with_its_origin(store):
    store.begin({"experiment": "bo4sc-ablation"})
    store.add({run(0): {"nll": 0.5, BESIDE: {"map": [1]}}, run(1): {"nll": float("nan")}})
    command, first, second = lines_of(store)
    assert command["kind"] == "command"
    assert first["key"] == {"dataset": "bac", "method": "standard", "seed": 0}
    assert (first["record"], first[BESIDE]) == ({"nll": 0.5}, {"map": [1]})
    assert second["record"] == {"nll": None}
    assert {"settings", "config", "code", "versions", "device", "date"} <= first.keys()
    assert first["command"] == command["id"]
    assert [r["nll"] for r in store.results().records] == [0.5, None]
    again = pickle.loads(pickle.dumps(store))  # another process reads the lines from the file
    assert (again.path, again.command) == (store.path, store.command)
    assert again.has(run(1))


def test_finished_run_is_missing_after_settings_or_code_change(store):
    reader = Store(store.path)
    assert reader.missing([run(0)])
    store.add({run(0): {}, run(1): {}})
    assert reader.missing([run(0), run(1), run(2)]) == [run(2)]
    assert store.missing([run(0, settings="b")]) == [run(0, settings="b")]
    assert store.missing([run(0, code="2")]) == [run(0, code="2")]
    store.add({run(0, code="2"): {"new": True}})
    assert [line["record"].get("new") for line in store.current.values()] == [True, None]
    assert len(lines_of(store)) == 3  # the old record is kept
    store.forget([run(0).name, "of no run"])
    assert not reader.has(run(0))


@pytest.mark.parametrize("torn", [b'{"kind": "record", "key"', b"\x00\x00", b'{"kind": "command"}', b"x" * 200_000])
def test_a_torn_last_line_is_ignored_and_replaced(store, torn):
    store.path.write_bytes(torn)
    store.add({run(0): {}})
    with open(store.path, "ab") as file:
        file.write(torn)
    again = Store(store.folder)
    assert again.missing([run(0), run(1)]) == [run(1)]
    again.add({run(1): {}})
    assert [line["key"]["seed"] for line in lines_of(store)] == [0, 1]
    assert store.has(run(1))


def test_a_whole_line_that_is_not_calibrants_is_an_error(store):
    store.path.write_text("hello\n")
    with pytest.raises(ValueError, match="not calibrant's"):
        store.has(run(0))


def test_incomplete_addition_is_ignored(store):
    store.add({run(9): {}})
    store.add({run(seed): {"text": "x"} for seed in range(3)})
    raw = store.path.read_bytes()
    second = raw.index(b"\n") + 1
    for end in (len(raw) - 1, raw.rindex(b"\n", 0, -1) + 1, second + 20):  # a byte, a line, nearly all is missing
        store.path.write_bytes(raw[:end])
        again = Store(store.folder)
        assert list(again.current) == [run(9).name]
        again.add({run(4): {}})
        assert list(Store(store.folder).current) == [run(9).name, run(4).name]


ADD = """
    import sys
    from studies.common.keys import make_key
    from studies.common.store import Store
    store, method = Store(sys.argv[1]), sys.argv[2]
    print("ready", flush=True)
    for seed in range(int(sys.argv[3])):
        store.add({make_key(settings="a", code="1", dataset="bac", method=method, seed=seed): {"text": "x" * 3000}})
"""


def test_two_processes_add_at_the_same_time_and_lose_nothing(store):
    children = [python(ADD, store.path, name, 200) for name in ("one", "two")]
    assert [child.wait(timeout=300) for child in children] == [0, 0]
    assert len(lines_of(store)) == len(store.current) == 400
    assert not list(store.folder.glob(".*lock"))


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_killed_process_leaves_whole_lines_and_no_lock(store, pause):
    child = python(ADD, store.path, "one", 100_000)
    child.stdout.readline()
    time.sleep(pause)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = len(store.current)
    store.add({run(0): {}})
    assert [line["key"]["seed"] for line in lines_of(store)] == [*range(before), 0]


CLAIM = """
    import sys, time
    from studies.common.keys import make_key
    from studies.common.store import Store
    key = make_key(settings="a", code="1", dataset="bac", method="standard", seed=0)
    with Store(sys.argv[1]).claim(key) as mine:
        print(mine, flush=True)
        time.sleep(600)
"""


def test_claim_is_exclusive_until_its_process_ends(store):
    with store.claim(run(0)) as mine:
        assert mine
        with Store(store.path).claim(run(0)) as again:
            assert not again
    child = python(CLAIM, store.path)
    assert child.stdout.readline() == b"True\n"
    assert list(store.take([run(0), run(1)])) == [run(1)]
    child.kill()
    child.wait()
    assert list(store.take([run(0), run(1)])) == [run(0), run(1)]
    store.add({run(0): {}})
    with store.claim(run(0)) as mine:
        assert not mine  # it is finished


def test_two_processes_take_each_run_once(store):
    keys = [run(seed) for seed in range(4)]
    first, second = store.take(keys), Store(store.path).take(keys)
    assert [next(first), next(second)] == keys[:2]
    store.add({keys[0]: {}})
    assert [next(first), next(second)] == keys[2:]


def known(settings="a", code="1"):
    return lambda line: make_key(settings=settings, code=code, **line["key"])


def test_only_changed_runs_are_repeated(store, capsys):
    keys = [run(seed) for seed in range(3)]
    assert begin(store, {}, keys, expected=known()) == keys
    store.add({key: {} for key in keys})
    assert capsys.readouterr().err == ""
    assert begin(store, {}, keys[:2], expected=known()) == []
    assert "Found 2 of 2 runs in" in capsys.readouterr().err
    assert len(store.results().records) == 3  # fewer runs are asked for, and none is lost
    changed = [run(seed, code="2") for seed in range(2)]
    assert begin(store, {}, changed, expected=known(code="2")) == changed
    told = capsys.readouterr().err
    assert "Re-running 2 runs: their data, settings or code changed." in told
    assert "Leaving out 1 stored run: " in told
    assert store.results().records == []
    assert len(lines_of(store)) == 1 + 3 + 1 + 1  # all is kept: commands, records, what to forget


def test_fresh_repeats_all_runs_even_after_an_interruption(store):
    keys = [run(seed) for seed in range(3)]
    store.add({key: {} for key in keys})
    assert begin(store, {}, keys[:2], expected=known(), fresh=True) == keys[:2]
    assert begin(Store(store.path), {}, keys, expected=known()) == keys[:2]


def test_configs_of_commands_with_records_are_merged(store):
    store.begin({"sets": ["bac"], "methods": {"a": 1}, "device": "cpu"})
    store.add({run(0): {}})
    store.begin({"sets": ["never used"]})
    store.begin({"sets": ["blobs-1.3"], "methods": {"b": 2}, "device": "cuda"})
    store.add({run(1): {}})
    config = store.results().config
    assert (config["sets"], config["methods"], config["device"]) == (["bac", "blobs-1.3"], {"a": 1, "b": 2}, "cuda")
    assert [other["device"] for other in config["other_runs"]] == ["cpu"]
    assert doctest.testmod(store_module).failed == 0


def test_combined_files_keep_the_commands_of_all():
    machine = {"gpu": None}

    def file(command: str, sets: list[str], *others: str) -> Results:
        config = {"command": command, "date": command, "machine": machine, "sets": sets}
        told = [origin({"command": other}, {}) for other in others]
        return Results(config | ({"other_runs": told} if told else {}), {"torch": command}, [])

    config = combined([file("a", ["bac"], "x"), file("b", ["iris"], "x", "y"), file("a", ["bac"])])
    assert (config["command"], config["date"], config["sets"]) == ("a", "a", ["bac", "iris"])
    assert [other["command"] for other in config["other_runs"]] == ["x", "y", "b"]
    assert config["other_runs"][-1] == {"command": "b", "date": "b", "machine": machine, "versions": {"torch": "b"}}
    assert "other_runs" not in combined([file("a", []), file("a", [])])


def test_a_store_of_another_experiment_is_refused(tmp_path):
    store, other = ABLATION.open(tmp_path), Store(tmp_path)
    assert not other.commands
    store.begin({"experiment": "bo4sc-ablation"})
    with pytest.raises(ValueError, match="results of `python -m studies ablate bo4sc`; choose another"):
        BO4SC.open(tmp_path)
    with pytest.raises(ValueError, match=r"another experiment in .*; choose another folder"):
        other.begin({"experiment": "bo4sc"})  # which began meanwhile
    assert ABLATION.open(tmp_path).commands


def test_result_file_without_a_store_starts_one_once(tmp_path):
    """Two processes find a result file and no store; the second must not overwrite new records with old ones."""
    records = [{"dataset": "bac", "method": "standard", "seed": 0, "nll": 1.0}]
    records.append(records[0] | {"seed": 1, "config": make_key(settings="a", code="1").config, "code": "1"})
    write_results(tmp_path / "results.json", {"experiment": "bo4sc-ablation", "date": "then"}, records, {"torch": "2"})
    late = Store(tmp_path)
    assert not late.commands
    store = ABLATION.open(tmp_path)
    assert [r["nll"] for r in store.results().records] == [1.0, 1.0]
    assert store.has(run(1))
    assert store.has(run(0))  # without a version, it has the first
    assert not store.has(run(0, code="2"))
    with pytest.raises(ValueError, match="choose another folder"):
        BO4SC.open(tmp_path)
    store.add({run(0): {"nll": 2.0}})
    late.adopt(read_results(tmp_path / "results.json"), ABLATION.axes)
    assert [line["record"]["nll"] for line in late.current.values()] == [2.0, 1.0]


def test_full_disk_is_one_sentence_and_the_next_addition_works(store):
    store.add({run(0): {}})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.path.stat().st_size + 50, hard))
    try:
        with pytest.raises(ValueError, match=r"cannot be written: File too large\. .*run the same command"):
            store.add({run(1): {"text": "x" * 1000}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.add({run(2): {}})
    assert list(Store(store.folder).current) == [run(0).name, run(2).name]


def test_the_last_export_has_the_records_of_all(tmp_path, monkeypatch):
    """One process reads the store and is slow to write; another adds a record and exports it meanwhile."""
    store, other = ABLATION.open(tmp_path), ABLATION.open(tmp_path)
    store.begin({"experiment": "bo4sc-ablation"})
    store.add({run(0): {"seed": 0}})
    plain = replace(ABLATION, order=lambda config: {}, extend=lambda config, records: {})
    threads = []

    def slow(path, *content):
        if not threads:
            other.add({run(1): {"seed": 1}})
            threads.append(threading.Thread(target=lambda: plain.export(other)))
            threads[0].start()
            threads[0].join(0.5)
        return write_results(path, *content)

    monkeypatch.setattr("studies.common.study.write_results", slow)
    plain.export(store)
    threads[0].join(60)
    assert [r["seed"] for r in read_results(tmp_path / "results.json").records] == [0, 1]
