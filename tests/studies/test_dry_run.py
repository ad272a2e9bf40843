"""Tests of `--dry-run`: every study lists its runs, done or missing, and writes nothing."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from calibrant.methods import METHODS, Entry
from studies.__main__ import app
from studies.common.dry_run import estimate, list_runs
from studies.common.keys import make_key
from tests.studies.cases import TINY, tiny_reproduce, write_table

COMMANDS = [
    ("reproduce", "bo4sc", "--quick"),
    ("sweep", "bo4sc", "--steps", "5", "--width", "32", "--alpha", "30", "--sets", "bac"),
    ("ablate", "bo4sc", "--seeds", "1"),
    ("reproduce", "meta-reg", "--quick"),
]


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_every_study_lists_its_runs_and_writes_nothing(command, tmp_path, monkeypatch):
    monkeypatch.setattr("studies.bo4sc.ablation.choose_sgd", lambda *a, **k: pytest.fail("trained"))
    done = invoke(*command, "--dry-run", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("missing  ")
    assert " missing." in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_tables_too(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_table(data / "one.csv")
    for command in (("bench", "tables", "--methods", "hgb"), ("ablate", "tables", "--only", "one")):
        done = invoke(*command, "--data", data, "--seeds", 1, "--dry-run", "--out", tmp_path / "out")
        assert done.exit_code == 0, done.output
        assert "missing  one, " in done.stdout
    assert not (tmp_path / "out").exists()


def test_stored_runs_are_done_and_others_missing(tmp_path):
    out = tmp_path / "out"
    common = ("--methods", "standard", "--sets", "bac", "--device", "cpu", "--dry-run", "--out", out)
    tiny_reproduce(out, seeds=1, methods=["standard"], sets=("bac",))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "standard", Entry(TINY["standard"], ""))
        done = invoke("reproduce", "bo4sc", *common, "--seeds", 2)
        again = invoke("reproduce", "bo4sc", *common, "--seeds", 1, "--fresh")
    assert "done     bac, standard, seed 0" in done.stdout
    assert "missing  bac, standard, seed 1" in done.stdout
    assert ": 1 done, 1 missing." in done.stdout
    assert "by the times of the stored runs." in done.stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert ": 1 missing." in again.stdout


def test_a_dry_run_of_a_result_file_is_refused(tmp_path):
    file = tmp_path / "results.json"
    file.write_text("{}")
    done = invoke("reproduce", "bo4sc", "--from", file, "--dry-run", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "--dry-run cannot be combined with --from" in done.stderr
    assert not (tmp_path / "out").exists()


KEYS = [make_key(settings="", dataset="bac", method=name, seed=seed) for name in "ab" for seed in (0, 1)]
TIMED = [
    {"dataset": "bac", "method": "a", "seed": 7, "seconds": 2.0, "code": "1"},
    {"dataset": "bac", "method": "a", "seed": 0, "seconds": 4.0, "code": "1"},
]


def test_the_estimate_is_a_mean_over_other_seeds(monkeypatch):
    monkeypatch.setattr("studies.common.dry_run.committed", lambda name: ())
    listed = list_runs(KEYS, TIMED, "bo4sc").splitlines()
    assert listed[0] == "done     bac, a, seed 0"
    assert listed[-2:] == [
        "4 runs: 1 done, 3 missing.",
        "The runs to make take about 3 s for 1 of them, by the times of the stored runs.",
    ]
    assert estimate(KEYS, [], "bo4sc") == ""
