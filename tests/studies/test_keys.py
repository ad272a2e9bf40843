"""Keys of runs: when two are equal, and when a stored run is up to date."""

import re
from pathlib import Path

import pytest

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


RESULTS = Path(__file__).parents[2] / "results" / "bo4sc-tables.json"


@pytest.mark.skipif(not RESULTS.exists(), reason="no results beside the tests")
def test_committed_runs_are_not_run_again():
    """Settings of today's methods, stored digests of tables; versions name libraries of the machine that measured."""
    results, methods = read_results(RESULTS), table_methods()
    settings = {name: repr(methods[name]) if name in methods else peer_settings(name) for name in (*methods, *PEERS)}
    records = [r for r in results.records if "version 0" not in r["code"] and r["method"] in settings]
    assert len(records) > 0.85 * len(results.records)
    for record in records:
        digest = results.config["tables"][record["table"]]["sha256"]
        assert make_key(settings=settings[record["method"]], data=digest, code=record["code"]).matches(record)
