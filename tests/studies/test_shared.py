"""Checks of all experiments: result files of other commands, and names of sets."""

import importlib
from pathlib import Path

import pytest

from studies.common.commands import COMMANDS, command_of
from studies.common.shared import checked_sets
from studies.report import write_results

RESULTS = Path(__file__).parents[2] / "results"
STORED = {
    "bo4sc": "bo4sc",
    "bo4sc-more-seeds": "bo4sc",
    "bo4sc-grid": "bo4sc-grid",
    "bo4sc-ablation": "bo4sc-ablation",
    "bo4sc-tables": "tables",
}
STUDIES = {}
for command in COMMANDS.values():
    STUDIES.setdefault(command.experiment, getattr(importlib.import_module(command.module), command.study))


@pytest.mark.skipif(not RESULTS.exists(), reason="no results beside the tests")
@pytest.mark.parametrize(("name", "own"), STORED.items())
def test_result_file_of_another_experiment_names_its_command(name, own):
    file = RESULTS / f"{name}.json"
    assert STUDIES[own].read([file]).records
    for other in STUDIES.keys() - {own}:
        with pytest.raises(ValueError) as error:
            STUDIES[other].read([file])
        assert (
            str(error.value)
            == f"{file} is a result file of `{command_of(own)}`; use `{command_of(own)} --from {file}`."
        )


def test_experiments_refuse_files_that_are_not_theirs(tmp_path):
    bare = write_results(tmp_path / "bare.json", {}, [])
    for name, study in STUDIES.items():
        with pytest.raises(ValueError, match=r"bare\.json is not a result file of calibrant"):
            study.run(source=bare, out=tmp_path)
        other = next(other for other in STUDIES if other != name)
        file = write_results(tmp_path / "other.json", {"experiment": other}, [{"seed": 0}])
        with pytest.raises(ValueError, match=f"use `{command_of(other)} --from "):
            study.run(source=file, out=tmp_path)
        file = write_results(tmp_path / "own.json", {"experiment": name}, [])
        with pytest.raises(ValueError, match=f"it lacks {', '.join(study.needed)}, records"):
            study.run(source=file, out=tmp_path)


@pytest.mark.parametrize("name", ["luck", None, ["bo4sc"], 3])
def test_unknown_experiment_is_not_a_result_file(tmp_path, name):
    file = write_results(tmp_path / "r.json", {"experiment": name}, [{"seed": 0}])
    with pytest.raises(ValueError, match="not a result file of calibrant"):
        STUDIES["bo4sc"].read([file])


def test_sets_are_known_and_each_is_taken_once():
    assert checked_sets(None) == ["blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5", "bac"]
    assert checked_sets(["bac", "blobs-1.3", "bac"]) == ["bac", "blobs-1.3"]
    with pytest.raises(ValueError, match=r"sets must be among blobs-1\.3, .* got moons"):
        checked_sets(["bac", "moons"])
