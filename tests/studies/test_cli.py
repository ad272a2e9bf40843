"""Tests of the commands of the studies: options reach the studies, dry runs list them, and errors are one sentence."""

import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from calibrant.methods import METHODS, Entry
from studies.common.commands import COMMANDS, command_of
from studies.common.shared import checked_sets
from studies.common.study import Study
from studies.report import write_results
from tests.studies.cases import TINY, invoke, tiny_reproduce, write_table

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calls(monkeypatch):
    """Replace the runner by one that notes its options; `calls.answer` is what it returns or raises."""

    class Calls(list):
        answer = "done"

    noted = Calls()

    @functools.wraps(Study.run)
    def run(study, **options):
        noted.append((study.name, options))
        if isinstance(noted.answer, BaseException):
            raise noted.answer
        return noted.answer

    monkeypatch.setattr(Study, "run", run)
    return noted


@pytest.mark.parametrize(
    ("words", "name", "options"),
    [
        ("reproduce bo4sc --quick --device cpu", "bo4sc", {"quick": True, "device": "cpu"}),
        (
            "reproduce bo4sc --seeds 9 --first-seed 1000 --methods bo4sc self-calibrated --sets bac --sets blobs-1.3",
            "bo4sc",
            {"seeds": 9, "first_seed": 1000, "methods": ["bo4sc", "self-calibrated"], "sets": ["bac", "blobs-1.3"]},
        ),
        ("sweep bo4sc --steps 5 10 --lr 0.01", "bo4sc-grid", {"steps": [5, 10], "learning_rate": [0.01]}),
        ("ablate bo4sc --seeds 2 --jobs 3 --fresh", "bo4sc-ablation", {"seeds": 2, "jobs": 3, "fresh": True}),
        (
            "bench tables --target kind --only iris --costs",
            "tables",
            {"target": "kind", "only": ["iris"], "costs": True},
        ),
        ("reproduce meta-reg --shared-device --minutes 2", "meta-reg", {"shared": True, "minutes": 2.0}),
    ],
)
def test_options_reach_the_study(calls, words, name, options):
    assert invoke(*words.split(), "--out", "x").exit_code == 0
    assert calls == [(name, {**options, "out": Path("x")})]


@pytest.mark.parametrize("command", COMMANDS)
def test_options_without_effect_beside_from_are_refused_by_name(calls, tmp_path, command):
    file = tmp_path / "results.json"
    assert invoke(*command.split(), "--from", file).exit_code == 2  # it is not there
    file.write_text("{}")
    assert invoke(*command.split(), "--from", file, "--out", tmp_path, "--export", file).exit_code == 0
    done = invoke(*command.split(), "--from", file, "--fresh")
    assert done.exit_code == 2
    assert "--fresh cannot be combined with --from" in done.stderr
    assert len(calls) == 1


@pytest.mark.parametrize(
    "words",
    [
        "reproduce bo4sc --seeds 0",
        "reproduce another",
        "reproduce",
        "reproduce bo4sc --device tpu",
        "reproduce bo4sc --settings /no/such/file",
        "reproduce bo4sc --methods",
        "reproduce meta-reg --no-such-option",
    ],
)
def test_wrong_usage_is_status_2_and_runs_nothing(calls, words):
    assert invoke(*words.split()).exit_code == 2
    assert calls == []


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, ImportError])
def test_expected_errors_are_one_sentence_and_status_1(calls, kind):
    calls.answer = kind("expected this,\n got that.")
    result = invoke("ablate", "bo4sc")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "studies: expected this, got that.\n"
    with pytest.raises(kind):
        invoke("--debug", "ablate", "bo4sc")


def test_bugs_are_not_hidden_and_an_interruption_says_how_to_go_on(calls):
    calls.answer = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        invoke("ablate", "bo4sc")
    calls.answer = KeyboardInterrupt()
    result = invoke("ablate", "bo4sc")
    assert result.exit_code == 130
    assert "Run the same command again" in result.stderr


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_what_the_report_needs_is_asked_for_before_the_training(calls, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke("ablate", "bo4sc")
    assert result.exit_code == 1
    assert "pip install 'calibrant[report]'" in result.stderr
    assert calls == []


def test_what_a_study_returns_is_printed(calls):
    calls.answer = Path("out/report.html")
    assert invoke("ablate", "bo4sc").stdout == "Written: out/report.html\n"
    calls.answer = "| a table |"
    assert invoke("ablate", "bo4sc").stdout == "| a table |\n"


def test_a_folder_that_cannot_be_written_stops_before_training(tmp_path, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("trained")

    monkeypatch.setattr("studies.common.runs.fit_all", never)
    monkeypatch.setattr("studies.bo4sc.search.fit_all", never)
    (tmp_path / "file").write_text("")
    (tmp_path / "results.json").write_text("{}")
    for command in ("ablate bo4sc --device cpu", "sweep bo4sc", f"reproduce bo4sc --from {tmp_path / 'results.json'}"):
        result = invoke(*command.split(), "--out", tmp_path / "file" / "out")
        assert result.exit_code == 1
        assert result.stderr.startswith("studies: --out must be a folder that can be written to; ")


def test_help_names_all_commands_and_their_options():
    done = subprocess.run([sys.executable, "-m", "studies", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    for command in COMMANDS:
        assert command.split()[1] in done.stdout
        text = invoke(*command.split(), "--help").stdout
        assert all(option in text for option in ("--from", "--out", "--dry-run"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_study_lists_its_runs_and_writes_nothing(command, tmp_path):
    small = ["--quick"] if command.endswith("meta-reg") else ["--seeds=1"]
    if command == "bench tables":
        assert "--data must name" in invoke(*command.split(), "--methods", "hgb").stderr
        small += ["--methods=hgb", f"--data={write_table(tmp_path / 'one.csv')}"]
    done = invoke(*command.split(), *small, "--dry-run", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("missing  ")
    assert " missing." in done.stdout
    assert not (tmp_path / "out").exists()


def test_stored_runs_are_done_and_others_missing(tmp_path, monkeypatch):
    out = tmp_path / "out"
    common = ("--methods", "standard", "--sets", "bac", "--device", "cpu", "--dry-run")
    tiny_reproduce(out, seeds=1, methods=["standard"], sets=("bac",))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setitem(METHODS, "standard", Entry(TINY["standard"], ""))
    for place in (("--out", out), ("--from", out / "results.json")):
        done = invoke("reproduce", "bo4sc", *common, "--seeds", 2, *place)
        assert "done     bac, standard, seed 0" in done.stdout
        assert "missing  bac, standard, seed 1" in done.stdout
        assert ": 1 done, 1 missing." in done.stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    again = invoke("reproduce", "bo4sc", *common, "--seeds", 1, "--fresh", "--out", out)
    assert ": 1 missing." in again.stdout


def test_every_command_names_its_experiment():
    for command in COMMANDS.values():
        assert getattr(importlib.import_module(command.module), command.study).name == command.experiment


STUDIES = {}
for command in COMMANDS.values():
    STUDIES.setdefault(command.experiment, getattr(importlib.import_module(command.module), command.study))


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
