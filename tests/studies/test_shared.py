"""Checks of all experiments: result files of other commands, and names of sets."""

import json
from pathlib import Path

import pytest

from calibrant.report import write_results
from studies import bo4sc, meta_reg, tables
from studies.bo4sc import ablation, grid
from studies.common.contents import KINDS, read_own
from studies.common.shared import checked_sets
from studies.tables import ablation as tables_ablation

RESULTS = Path(__file__).parents[2] / "results"
STORED = {
    "bo4sc": "bo4sc",
    "bo4sc-more-seeds": "bo4sc",
    "bo4sc-grid": "bo4sc-grid",
    "bo4sc-ablation": "bo4sc-ablation",
    "bo4sc-tables": "tables",
}
EXPERIMENTS = {
    "bo4sc": bo4sc.reproduce,
    "bo4sc-grid": grid.run,
    "bo4sc-ablation": ablation.run,
    "tables": tables.run,
    "tables-ablation": tables_ablation.run,
    "meta-reg": lambda source, out: meta_reg.reproduce(source=[source], out=out),
}


def as_it_is(results):
    return results


@pytest.mark.skipif(not RESULTS.exists(), reason="no results beside the tests")
@pytest.mark.parametrize(("name", "own"), STORED.items())
def test_result_file_of_another_experiment_names_its_command(name, own):
    file = RESULTS / f"{name}.json"
    assert read_own(file, own, as_it_is).records
    whose = f"python -m studies {KINDS[own].command}"
    for other in KINDS.keys() - {own}:
        with pytest.raises(ValueError) as error:
            read_own(file, other, as_it_is)
        assert str(error.value) == f"{file} is a result file of `{whose}`; use `{whose} --from {file}`."


def test_experiments_refuse_files_that_are_not_theirs(tmp_path):
    assert EXPERIMENTS.keys() == KINDS.keys()
    bare = write_results(tmp_path / "bare.json", {}, [])
    for experiment, run in EXPERIMENTS.items():
        with pytest.raises(ValueError, match=r"bare\.json is not a result file of calibrant"):
            run(source=bare, out=tmp_path)
        other = next(name for name in KINDS if name != experiment)
        file = write_results(tmp_path / "other.json", {"experiment": other}, [{"seed": 0}])
        with pytest.raises(ValueError, match=f"use `python -m studies {KINDS[other].command} --from "):
            run(source=file, out=tmp_path)
        file = write_results(tmp_path / "own.json", {"experiment": experiment}, [])
        with pytest.raises(ValueError, match=f"it lacks {', '.join(KINDS[experiment].needed)}, records"):
            run(source=file, out=tmp_path)


@pytest.mark.parametrize("name", ["luck", None, ["bo4sc"], 3])
def test_unknown_experiment_is_not_a_result_file(tmp_path, name):
    file = write_results(tmp_path / "r.json", {"experiment": name}, [{"seed": 0}])
    with pytest.raises(ValueError, match="not a result file of calibrant"):
        read_own(file, "bo4sc", as_it_is)


@pytest.mark.parametrize("part", [{"config": []}, {"versions": None}, {"records": {}}, {"records": [1]}])
def test_parts_of_another_shape_are_refused(tmp_path, part):
    file = tmp_path / "r.json"
    file.write_text(json.dumps({"config": {"experiment": "tables"}, "versions": {}, "records": []} | part))
    with pytest.raises(ValueError, match=f"not a result file of calibrant: .*{next(iter(part))}"):
        read_own(file, "tables", as_it_is)


def test_sets_are_known_and_each_is_taken_once():
    assert checked_sets(None) == ["blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5", "bac"]
    assert checked_sets(["bac", "blobs-1.3", "bac"]) == ["bac", "blobs-1.3"]
    with pytest.raises(ValueError, match=r"sets must be among blobs-1\.3, .* got moons"):
        checked_sets(["bac", "moons"])
