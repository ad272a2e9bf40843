"""Tests of result files."""

import json

import numpy as np
import pytest
import torch

from calibrant.report import versions
from studies.report import command, provenance, read_results, write_results


def test_what_is_written_is_read(tmp_path):
    records = [
        {"seed": np.int64(1), "nll": torch.tensor(0.5), "aurc": np.float32(0.25), "map": np.eye(2), "at": tmp_path}
    ]
    path = write_results(tmp_path / "deep" / "results.json", {"seeds": 1, "grid": (1, 2)}, records)
    assert set(json.loads(path.read_text())) == {"config", "versions", "records"}
    config, made_with, found = read_results(path)
    assert found == [{"seed": 1, "nll": 0.5, "aurc": 0.25, "map": [[1.0, 0.0], [0.0, 1.0]], "at": str(tmp_path)}]
    assert config["seeds"] == 1
    assert config["grid"] == [1, 2]
    assert {"processor", "cores", "gpu"} <= config["machine"].keys()
    assert made_with == versions()
    assert {"calibrant", "python", "torch", "numpy", "scipy", "scikit-learn"} <= made_with.keys()
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


def test_every_record_is_a_line(tmp_path):
    path = write_results(tmp_path / "r.json", {"deep": {"a": [1, 2]}}, [{"seed": k, "list": [k]} for k in range(3)])
    assert [line for line in path.read_text().splitlines() if '"seed"' in line][1] == '  {"seed": 1, "list": [1]},'
    assert read_results(write_results(path, {}, [])).records == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/tables", "tables"),
        ("--out=/home/me/x", "--out=x"),
        ("--out=a/b", "--out=a/b"),
        ("/", "/"),
        ("x", "x"),
    ],
)
def test_a_command_is_kept_without_the_folders_of_this_machine(monkeypatch, given, kept):
    monkeypatch.setattr("sys.argv", ["/usr/bin/calibrant", "bench", given])
    assert command() == f"calibrant bench {kept}"


def test_numbers_that_json_lacks_become_null(tmp_path):
    path = write_results(tmp_path / "r.json", {}, [{"nll": float("inf"), "ece": np.nan}])
    assert read_results(path).records == [{"nll": None, "ece": None}]


def test_a_machine_that_is_named_is_kept(tmp_path):
    path = write_results(tmp_path / "r.json", {"machine": {"gpu": "another"}}, [])
    assert read_results(path).config["machine"] == {"gpu": "another"}


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = write_results(tmp_path / "r.json", {}, [{"seed": 0}])
    with pytest.raises(TypeError):
        write_results(path, {}, [{"seed": object()}])
    assert read_results(path).records == [{"seed": 0}]


@pytest.mark.parametrize(
    ("text", "says"), [("{", "not a JSON file"), ("[]", "lacks config"), ('{"config": {}}', "versions")]
)
def test_other_files_are_refused_by_a_sentence(tmp_path, text, says):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_results(tmp_path / "r.json")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no result file"):
        read_results(tmp_path / "r.json")


def test_provenance_tells_the_run():
    facts = provenance({"seeds": 3, "machine": {"gpu": "H"}}, note="remade")
    assert facts["config"] == {"seeds": 3}
    assert facts["machine"] == {"gpu": "H"}
    assert facts["note"] == "remade"
    assert facts["command"]
    assert facts["date"].endswith("UTC")


def test_versions_of_older_records_are_kept(tmp_path):
    made_with = {"torch": "1.0"}
    write_results(tmp_path / "r.json", {"experiment": "x"}, [{"ece": 0.1}], made_with)
    assert read_results(tmp_path / "r.json").versions == made_with
    write_results(tmp_path / "new.json", {"experiment": "x"}, [{"ece": 0.1}])
    assert read_results(tmp_path / "new.json").versions == versions()
