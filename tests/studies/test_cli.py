"""Tests of the commands of the studies: arguments reach the studies, and errors are one sentence."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
import typer.main
from typer.testing import CliRunner

from studies import __main__ as commands

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calls(monkeypatch):
    """Replace each study by one that notes its arguments; `calls.answer` is what they return or raise."""
    noted = types.SimpleNamespace(made=[], answer=None)

    def experiment(name):
        def run(**arguments):
            noted.made.append((name, arguments))
            if isinstance(noted.answer, BaseException):
                raise noted.answer
            return noted.answer

        return run

    for module, function in (
        ("bo4sc", "reproduce"),
        ("bo4sc.grid", "run"),
        ("bo4sc.ablation", "run"),
        ("tables", "run"),
        ("tables.ablation", "run"),
    ):
        stand_in = types.ModuleType(f"studies.{module}")
        setattr(stand_in, function, experiment(f"{module}.{function}"))
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    return noted


def invoke(*arguments):
    return CliRunner().invoke(commands.app, [str(a) for a in arguments])


def plain(text):
    """What a usage error says, without colours, the box around it and its line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).replace("│", " ").split())


def test_reproduce(calls):
    assert invoke("reproduce", "bo4sc").exit_code == 0
    assert invoke("reproduce", "bo4sc", "--quick", "--out", "x", "--device", "cpu").exit_code == 0
    assert invoke("reproduce", "bo4sc", "--seeds", 7, "--quick").exit_code == 0
    other = ("--first-seed", 1000, "--methods", "bo4sc", "self-calibrated")
    assert invoke("reproduce", "bo4sc", "--seeds", 9, *other).exit_code == 0
    assert invoke("reproduce", "bo4sc", "--seeds", 9, "--sets", "bac", "blobs-1.3").exit_code == 0
    usual = {"out": Path("out/bo4sc"), "device": "auto", "settings": None, "source": None}
    usual |= {"first_seed": 0, "methods": None, "sets": None, "jobs": None, "fresh": False}
    some = {"first_seed": 1000, "methods": ["bo4sc", "self-calibrated"]}
    assert calls.made == [
        ("bo4sc.reproduce", {**usual, "seeds": None, "quick": False}),
        ("bo4sc.reproduce", {**usual, "seeds": None, "quick": True, "out": Path("x"), "device": "cpu"}),
        ("bo4sc.reproduce", {**usual, "seeds": 7, "quick": True}),
        ("bo4sc.reproduce", {**usual, "seeds": 9, "quick": False, **some}),
        ("bo4sc.reproduce", {**usual, "seeds": 9, "quick": False, "sets": ["bac", "blobs-1.3"]}),
    ]


EXPERIMENTS = [
    ("reproduce", "bo4sc"),
    ("sweep", "bo4sc"),
    ("ablate", "bo4sc"),
    ("ablate", "tables"),
    ("bench", "tables"),
]


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_every_report_is_made_from_a_result_file(calls, tmp_path, command):
    file = tmp_path / "results.json"
    assert invoke(*command, "--from", file).exit_code == 2  # it is not there
    file.write_text("{}")
    assert invoke(*command, "--from", file, "--out", tmp_path).exit_code == 0
    assert [(arguments["source"], arguments["out"]) for _, arguments in calls.made] == [(file, tmp_path)]


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_options_without_effect_beside_from_are_refused_by_name(calls, tmp_path, command):
    """Every option except --out, found in the commands themselves. Default values are refused too."""
    file = tmp_path / "results.json"
    file.write_text("{}")
    values = {"--device": "auto", "--criterion": "bce", "--data": tmp_path, "--settings": file}
    group, name = command
    options = {p.opts[0]: p for p in typer.main.get_command(commands.app).commands[group].commands[name].params}
    assert {"--from", "--out", "--seeds", "--device"} <= options.keys()
    for name in options.keys() - {"--from", "--out", "--dry-run"}:
        given = [name] if options[name].is_flag else [name, values.get(name, 1)]
        result = invoke(*command, *given, "--from", file)
        assert result.exit_code == 2
        assert f"{name} cannot be combined with --from" in plain(result.stderr)
    both = invoke(*command, "--seeds", 3, "--device", "cpu", "--from", file)
    assert "--seeds and --device cannot be combined" in plain(both.stderr)
    assert calls.made == []


@pytest.mark.parametrize("rest", [(), ("--out", "x"), ("--seeds", 3)])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("reproduce", "bo4sc"), "--methods"),
        (("reproduce", "bo4sc"), "--sets"),
        (("sweep", "bo4sc"), "--learning-rate"),
    ],
)
def test_a_list_without_a_value_is_said(calls, command, option, rest):
    result = invoke(*command, option, *rest)
    assert result.exit_code == 2
    assert f"{option} needs at least one value; got none." in plain(result.stderr)
    assert calls.made == []


def test_a_list_may_begin_with_an_equals_sign(calls):
    assert invoke("sweep", "bo4sc", "--alpha=10", 30, "--seeds", 2).exit_code == 0
    assert calls.made[0][1]["grid"]["alpha"] == [10, 30]


def test_a_result_file_of_another_command_is_one_sentence(tmp_path):
    """The experiments themselves, not stand-ins."""
    file = tmp_path / "results.json"
    file.write_text('{"config": {"experiment": "tables"}, "versions": {}, "records": [{"seed": 0}]}')
    result = invoke("reproduce", "bo4sc", "--from", file, "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"studies: {file} is a result file of `python -m studies bench tables`; "
        f"use `python -m studies bench tables --from {file}`.\n"
    )
    file.write_text('{"config": {}, "versions": {}, "records": []}')
    for command in EXPERIMENTS:
        result = invoke(*command, "--from", file, "--out", tmp_path)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"studies: {file} is not a result file of calibrant")


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("ablate", "bo4sc", "--out", tmp_path / "file" / "out", "--device", "cpu")
    assert result.exit_code == 1
    assert result.stderr.startswith("studies: --out must be a folder that can be written to; ")


def test_settings_of_a_sweep_are_what_reproduce_takes(calls, tmp_path):
    file = tmp_path / "settings.json"
    assert invoke("reproduce", "bo4sc", "--settings", file).exit_code == 2
    file.write_text("{}")
    assert invoke("reproduce", "bo4sc", "--settings", file).exit_code == 0
    assert [arguments["settings"] for _, arguments in calls.made] == [file]


@pytest.mark.parametrize(
    "lists", [("--steps", 5, 10, "--learning-rate", 0.01), ("--steps", 5, "--steps", 10, "--lr", 0.01)]
)
def test_sweep_takes_lists_in_both_ways(calls, lists):
    assert invoke("sweep", "bo4sc", *lists, "--seeds", 2).exit_code == 0
    ((name, arguments),) = calls.made
    assert name == "bo4sc.grid.run"
    assert arguments["grid"] == {"steps": [5, 10], "learning_rate": [0.01]}
    assert arguments["seeds"] == 2
    assert arguments["criterion"] == "bce"
    assert arguments["sets"] is None


def test_sweep_of_some_sets_by_another_criterion(calls):
    assert invoke("sweep", "bo4sc", "--sets", "bac", "blobs-1.3", "--criterion", "nll").exit_code == 0
    assert invoke("sweep", "bo4sc", "--criterion", "luck").exit_code == 2
    ((_, arguments),) = calls.made
    assert (arguments["sets"], arguments["criterion"]) == (["bac", "blobs-1.3"], "nll")


def test_ablate_tables(calls, tmp_path):
    assert (
        invoke("ablate", "tables", "--data", tmp_path, "--seeds", 1, "--only", "a", "--methods", "plain").exit_code == 0
    )
    usual = {"out": Path("out/tables-ablation"), "device": "auto", "source": None, "jobs": None, "fresh": False}
    wanted = {"data": tmp_path, "seeds": 1, "rows": 3000, "only": ["a"], "methods": ["plain"]}
    assert calls.made == [("tables.ablation.run", wanted | usual)]
    assert invoke("ablate", "tables").exit_code == 2


def test_ablate(calls):
    assert invoke("ablate", "bo4sc", "--seeds", 4).exit_code == 0
    usual = {"out": Path("out/bo4sc-ablation"), "device": "auto", "source": None, "jobs": None, "fresh": False}
    assert calls.made == [("bo4sc.ablation.run", {"seeds": 4, **usual})]


def test_bench_tables(calls, tmp_path):
    given = ("--data", tmp_path, "--target", "kind", "--only", "iris", "wine", "--methods", "bo4sc", "--jobs", 2)
    assert invoke("bench", "tables", *given).exit_code == 0
    ((name, arguments),) = calls.made
    assert name == "tables.run"
    assert arguments == {
        "data": tmp_path,
        "target": "kind",
        "seeds": 5,
        "only": ["iris", "wine"],
        "methods": ["bo4sc"],
        "out": Path("out/tables"),
        "device": "auto",
        "jobs": 2,
        "fresh": False,
        "costs": False,
        "source": None,
    }
    assert invoke("bench", "tables", "--data", tmp_path, "--fresh").exit_code == 0
    assert calls.made[1][1]["fresh"] is True


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_every_experiment_takes_processes_and_fresh(calls, tmp_path, command):
    data = ("--data", tmp_path) if command[1] == "tables" else ()
    assert invoke(*command, *data, "--jobs", 3, "--fresh").exit_code == 0
    assert invoke(*command, *data, "--jobs", 0).exit_code == 2
    assert [(arguments["jobs"], arguments["fresh"]) for _, arguments in calls.made] == [(3, True)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("reproduce", "bo4sc", "--seeds", "0"),
        ("reproduce", "another"),
        ("reproduce", "bo4sc", "--device", "tpu"),
        ("bench", "tables"),
        ("bench", "tables", "--data", "/no/such/folder"),
    ],
)
def test_wrong_usage_is_status_2_and_runs_nothing(calls, arguments):
    assert invoke(*arguments).exit_code == 2
    assert calls.made == []


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, ImportError])
def test_expected_errors_are_one_sentence_and_status_1(calls, kind):
    calls.answer = kind("expected this,\n got that.")
    result = invoke("ablate", "bo4sc")
    assert result.exit_code == 1
    assert result.stderr == "studies: expected this, got that.\n"
    assert result.stdout == ""


def test_an_interruption_says_how_to_go_on(calls):
    calls.answer = KeyboardInterrupt()
    result = invoke("ablate", "bo4sc")
    assert result.exit_code == 130
    assert "Run the same command again" in result.stderr


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_what_the_report_needs_is_asked_for_before_the_training(calls, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke("ablate", "bo4sc")
    assert result.exit_code == 1
    assert "which is not installed" in result.stderr
    assert "pip install 'calibrant[report]'" in result.stderr
    assert calls.made == []


def test_debug_shows_the_error_itself(calls):
    calls.answer = ValueError("expected")
    assert invoke("--debug", "ablate", "bo4sc").exception is calls.answer


def test_errors_that_nobody_expects_are_not_hidden(calls):
    calls.answer = ZeroDivisionError("a bug")
    assert invoke("ablate", "bo4sc").exception is calls.answer


def test_what_an_experiment_returns_is_said(calls):
    calls.answer = Path("out/report.html")
    assert invoke("ablate", "bo4sc").stdout == "Written: out/report.html\n"
    calls.answer = "| a table |"
    assert invoke("ablate", "bo4sc").stdout == "| a table |\n"


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "studies", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    for command in ("reproduce", "sweep", "ablate", "bench"):
        assert command in plain(done.stdout)
