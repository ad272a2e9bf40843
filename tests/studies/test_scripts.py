"""Tests of the studies that are one script: what is stored is not measured again, and each script on small data."""

from __future__ import annotations

import argparse
import importlib
import json

import pytest

from calibrant.methods import METHODS, Entry
from studies import guarantees, hostile, label_noise, network_tasks, networks, script
from studies.report import read_results
from tests.studies.cases import TINY, eager

RUNS = [{"dataset": name, "seed": seed} for name in ("b", "a") for seed in (0, 1)]
ORDER = {"dataset": ["b", "a"], "seed": None}


def run_missing(path, runs, measure, **options):
    chosen = argparse.Namespace(**{"out": path, "jobs": 1, "dry_run": False} | options)
    return script.run_missing(chosen, "small", [[run] for run in runs], measure, ORDER)


def measure(runs):
    return [{**run, "nll": 0.5} for run in runs]


def test_stored_runs_are_kept_and_missing_ones_added_in_order(tmp_path, capsys):
    path = tmp_path / "results.json"
    assert run_missing(path, RUNS, None, dry_run=True) == []
    assert "missing: dataset a, seed 1" in capsys.readouterr().out
    assert not path.exists()
    run_missing(path, RUNS[2:], measure)
    first = read_results(path)
    assert first.config["experiment"] == "small"
    assert "other_runs" not in first.config
    records = run_missing(path, RUNS, measure, jobs=2)
    assert "2 runs to do; 2 in" in capsys.readouterr().err
    assert [(r["dataset"], r["seed"]) for r in records] == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    stored = read_results(path)
    assert stored.records == records
    assert all(r["code"] == script.VERSION for r in records)
    assert stored.config["date"] == first.config["date"]
    assert len(stored.config["other_runs"]) == 1
    before = path.read_bytes()
    assert run_missing(path, RUNS, None) == records
    assert path.read_bytes() == before


def test_an_interrupted_script_goes_on(tmp_path):
    def interrupted(runs):
        if runs[0] == RUNS[2]:
            raise KeyboardInterrupt
        return measure(runs)

    path = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        run_missing(path, RUNS, interrupted)
    assert len(read_results(path).records) == 2
    assert len(run_missing(path, RUNS, measure)) == 4


@pytest.mark.parametrize("name", ["guarantees", "networks", "label_noise"])
def test_committed_records_are_not_measured_again(name, capsys):
    importlib.import_module(f"studies.{name}").main(["--dry-run"])
    shown = capsys.readouterr()
    assert shown.err.startswith("0 runs to do")
    assert "| ---" in shown.out


def test_hostile_lists_only_runs_of_other_libraries(capsys):
    hostile.main(["--dry-run"])
    missing = [line for line in capsys.readouterr().out.splitlines() if line.startswith("missing")]
    own = (hostile.OWN, hostile.FREQUENCIES, *hostile.MEMBERS)
    assert not [line for line in missing if any(f"method {name}," in line for name in own)]


def test_unknown_names_and_shares_are_refused(tmp_path):
    for study, option, value in (
        (hostile, "--cases", "three rows"),
        (hostile, "--methods", "before"),
        (guarantees, "--learners", "forest"),
        (networks, "--tasks", "faces"),
        (label_noise, "--rates", "20"),
    ):
        with pytest.raises(SystemExit):
            study.main([option, value, "--out", str(tmp_path / "results.json")])


def test_guarantees_on_small_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guarantees, "NEW_ROWS", 500)
    monkeypatch.setattr(guarantees, "ROWS", 120)
    guarantees.world.cache_clear()
    path = tmp_path / "results.json"
    guarantees.main(
        ["--seeds", "2", "--sets", "blobs-1.3", "--learners", "logistic", "tree", "--out", str(path), "--jobs", "1"]
    )
    guarantees.world.cache_clear()
    records = read_results(path).records
    assert [(r["learner"], r["seed"]) for r in records] == [(n, s) for n in ("logistic", "tree") for s in (0, 1)]
    assert set(records[0]) >= {"mean", "refit", "split", "folds"}
    assert "| tree" in capsys.readouterr().out


def test_hostile_on_small_cases(tmp_path, capsys):
    path = tmp_path / "results.json"
    chosen = ["--cases", "two rows", "ten rows", "--methods", "class-frequencies", "linear", "logistic-regression"]
    hostile.main(["--seeds", "2", *chosen, "--out", str(path)])
    records = {(r["dataset"], r["method"], r["seed"]): r for r in read_results(path).records}
    assert len(records) == 12
    assert records["ten rows", "linear", 0]["peak_memory"] is not None
    assert records["ten rows", "linear", 0]["failure"] is None
    assert "| two rows" in capsys.readouterr().out


def test_networks_on_small_data(tmp_path, monkeypatch, capsys):
    counts = dict.fromkeys(network_tasks.COUNTS, (90, 60, 50))
    monkeypatch.setattr(network_tasks, "COUNTS", counts)
    monkeypatch.setattr(networks, "EPOCHS", {"scratch": 2, "tuned": 2})
    monkeypatch.setattr(networks, "REPEATS", {"scratch": 1, "tuned": 2})
    path = tmp_path / "results.json"
    networks.main(["--seeds", "1", "--tasks", "table", "--out", str(path)])
    records = read_results(path).records
    assert [r["start"] for r in records] == ["scratch", "tuned"]
    for record, repeats in zip(records, (1, 2), strict=True):
        assert all(1 <= count <= 3 for count in record["networks"])
        assert len(record["fit"]["nll_of_repeats"]) == repeats
        assert record["fit"]["nll"] == pytest.approx(sum(record["fit"]["nll_of_repeats"]) / repeats, rel=1e-5)
        assert record["plain"]["seconds"] == pytest.approx(record["fit"]["seconds"], rel=0.5, abs=0.5)
    assert "| table | fine-tuned" in " ".join(capsys.readouterr().out.split())


def test_label_noise_with_methods_that_take_no_time(tmp_path, monkeypatch):
    for name, method in TINY.items():
        monkeypatch.setitem(METHODS, name, Entry(method, ""))
    path = tmp_path / "results.json"
    words = ["--rates", "0.4", "--seeds", "1", "--first-seed", "7", "--sets", "blobs-1.7", "--device", "cpu"]
    with eager():
        label_noise.main([*words, "--methods", *TINY, "--out", str(path)])
    records = read_results(path).records
    assert [(r["method"], r["rate"], r["seed"]) for r in records] == [(m, r, 7) for m in TINY for r in (0.0, 0.4)]
    for record in records:
        assert record["failure"] is None
        assert (record["suspects_auroc"] is None) == (record["rate"] == 0)
        assert (record["candidate"] is not None) == (record["method"] == "self-calibrated")
    assert json.loads(path.read_text())["config"]["experiment"] == "noise"
