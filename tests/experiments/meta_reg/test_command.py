"""The commands of the second paper's study as a user types them: options, suggestions, downloads and notes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from calibrant.cli.commands import app
from calibrant.data.vision import SOURCES
from calibrant.data.vision.sources import Archive
from calibrant.experiments.meta_reg import study
from calibrant.experiments.meta_reg.plan import Setup, chosen_methods, known_methods
from tests.data.vision.cases import write_idx

TINY = ["--limit", "200", "--epochs", "1", "--seeds", "1", "--methods", "ce"]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("wrong", "meant"), [("flg_sece", "flg-sece"), ("CE-TS", "ce-ts"), ("recomended", "recommended")]
)
def test_an_unknown_method_is_answered_by_a_similar_one(wrong: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"got {wrong}. Did you mean {meant}") as told:
        chosen_methods([wrong], known_methods())
    assert "more; got" in str(told.value)  # not all of the variants are listed
    with pytest.raises(ValueError, match=r"got xyz\.$"):
        chosen_methods(["xyz"], known_methods())
    assert chosen_methods(["recommended", "ce"], known_methods()) == ["ce", "recommended"]


@pytest.mark.parametrize("command", ["reproduce", "sweep", "ablate"])
def test_quick_runs_refuse_other_images(command: str, tmp_path: Path) -> None:
    for words in (["--data", tmp_path], ["--dataset", "cifar100"]):
        done = run(command, "meta-reg", "--quick", *words)
        assert done.exit_code == 2
        assert "leave out --dataset" in " ".join(done.stderr.replace("│", " ").split())


def test_a_missing_data_folder_is_a_sentence(tmp_path: Path) -> None:
    done = run("reproduce", "meta-reg", "--data", tmp_path / "none", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr.startswith("calibrant: --data must be an existing folder")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert study.data_folder("cifar10", "~", download=False) == tmp_path
    assert study.data_folder("digits", None, download=True) is None


def test_a_quick_ablation_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict] = []
    monkeypatch.setattr(study, "reproduce", lambda **settings: asked.append(settings) or Path("report.html"))
    study.ablate(quick=True, dataset="cifar10", epochs=None, limit=300, seeds=None)
    study.ablate(dataset="cifar10")
    small, full = asked
    assert (small["dataset"], small["seeds"], small["epochs"], small["limit"]) == ("digits", 1, study.TRIAL_EPOCHS, 300)
    assert (full["dataset"], full["seeds"]) == ("cifar10", study.ABLATION_SEEDS)
    assert "epochs" not in full


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fashion-MNIST at a file:// address."""
    site = tmp_path / "site"
    write_idx(site, "", True)
    files = [(path, hashlib.md5(path.read_bytes()).hexdigest()) for path in site.iterdir()]
    archives = tuple(Archive((path.as_uri(),), md5, "fashion-mnist") for path, md5 in files)
    monkeypatch.setitem(SOURCES, "fashion-mnist", replace(SOURCES["fashion-mnist"], archives=archives))
    return site


def test_download_then_train(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "write_report", lambda paths, *_, **__: paths[0])
    words = [
        "reproduce",
        "meta-reg",
        "--dataset",
        "fashion-mnist",
        "--data",
        tmp_path / "new",
        "--device",
        "cpu",
        *TINY,
    ]
    done = run(*words, "--out", tmp_path / "out", "--download")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "new" / "fashion-mnist").iterdir())) == 4
    assert done.stderr.count("Note: ") >= 2
    assert "images, but the training part of Fashion-MNIST has 60,000" in done.stderr
    assert "Warning:" not in done.stderr  # no line of code
    assert "[1/1] Fashion-MNIST, ce, seed 0" in done.stderr
    (record,) = json.loads((tmp_path / "out" / "results.json").read_text())["records"]
    assert record["method"] == "ce"


def test_a_failed_download_is_a_sentence(published: Path, tmp_path: Path) -> None:
    for path in published.iterdir():
        path.unlink()
    done = run("reproduce", "meta-reg", "--dataset", "fashion-mnist", "--data", tmp_path / "new", "--download", *TINY)
    assert done.exit_code == 1
    assert "could not be downloaded" in done.stderr
    assert "Traceback" not in done.output


def test_the_data_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--data must be an existing folder"):
        Setup("cifar10", tmp_path / "none")
