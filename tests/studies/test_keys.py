"""Keys of runs: when two are equal, and when a stored run is up to date."""

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from studies.common.commands import COMMANDS
from studies.common.keys import make_key, name_of
from studies.report import read_results
from studies.tables.peers import PEERS, peer_settings
from studies.tables.study import table_methods


def test_key_is_its_fields_and_config_digests_the_rest():
    one = make_key(settings="a", code="1", dataset="bac", method="bo4sc", seed=3)
    assert one.name == "dataset=bac method=bo4sc seed=3"
    assert one["seed"] == 3
    assert {one: 1}[make_key(settings="a", code="1", dataset="bac", method="bo4sc", seed=3)] == 1
    others = [
        make_key(settings="b", code="1", dataset="bac", method="bo4sc", seed=3),
        make_key(settings="a", code="1", data="x", dataset="bac", method="bo4sc", seed=3),
    ]
    assert len({key.config for key in (one, *others)}) == 3
    assert {key.name for key in others} == {one.name}


def test_a_whole_number_is_the_same_as_a_float():
    assert name_of([("lr", 300.0), ("steps", 5)]) == name_of([("lr", 300), ("steps", 5.0)]) == "lr=300 steps=5"
    assert name_of([("lr", 0.1234567)]) == "lr=0.1234567"


def test_file_names_are_safe_and_differ():
    found = {
        make_key(settings="", code="", method=name, seed=0).file_name
        for name in ("η_w × 10", "η_w × 1", "../x", "a/b", "a_b", "y" * 200)
    }
    assert len(found) == 6
    assert all(re.fullmatch(r"[\w.=-]{1,100}", name, re.ASCII) and not name.startswith(".") for name in found)


def test_a_stored_run_matches_by_version_and_settings():
    key = make_key(settings="a", code="2", seed=0)
    assert key.matches({"code": "2", "config": key.config})
    assert key.matches({"code": "2", "config": ""})
    assert key.matches({"code": "2"})
    assert not key.matches({"code": "1", "config": key.config})
    assert not key.matches({"code": "2", "config": "other"})


def axes_of(experiment):
    """The fields that identify the runs of an experiment."""
    command = next(command for command in COMMANDS.values() if command.experiment == experiment)
    return getattr(importlib.import_module(command.module), command.study).axes


RESULTS = Path(__file__).parents[2] / "results"


def test_committed_runs_are_not_run_again():
    path = RESULTS / "bo4sc-tables.json"
    if not path.exists():
        pytest.skip("no results beside the tests")
    results = read_results(path)
    records = [record for record in results.records if "version 0" not in record["code"]]
    fields = axes_of(results.config["experiment"])
    lines = [record | {"key": {n: record[n] for n in fields if n in record}, "data": ""} for record in records]
    keys = [(tables_key(line), line) for line in lines]
    known = [(key, line) for key, line in keys if key is not None]
    assert len(known) > 0.9 * len(lines)
    assert all(key.matches(line) for key, line in known)


@cache
def tables_settings():
    """The settings of today's methods and the stored digests of the tables."""
    config, methods = read_results(RESULTS / "bo4sc-tables.json").config, table_methods()
    texts = {name: repr(methods[name]) if name in methods else peer_settings(name) for name in (*methods, *PEERS)}
    return texts, {name: table["sha256"] for name, table in config["tables"].items()}


def tables_key(line):
    """The key of a run on tables; its version names libraries of the machine that measured it."""
    texts, digests = tables_settings()
    if line["method"] not in texts:  # no longer a method
        return None
    return make_key(settings=texts[line["method"]], data=digests[line["table"]], code=line["code"])
