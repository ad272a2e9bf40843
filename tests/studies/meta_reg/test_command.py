"""The commands of the second paper's study as a user types them: options, suggestions, downloads and notes."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from studies.common.dry_run import state
from studies.common.keys import make_key
from studies.images import SOURCES
from studies.images.published import Archive
from studies.meta_reg import study
from studies.meta_reg.plan import chosen_methods, known_methods
from tests.studies.cases import invoke as run
from tests.studies.images.cases import write_idx

TINY = ["--limit", "200", "--epochs", "1", "--seeds", "1", "--methods", "ce"]


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
@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_a_quick_run_on_other_images_needs_their_folder(command: str, dataset: str, tmp_path: Path) -> None:
    done = run(command, "meta-reg", "--quick", "--dataset", dataset, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr.startswith("studies: --data must name the folder with the files of CIFAR-10")


@pytest.mark.parametrize("command", ["reproduce", "sweep", "ablate"])
def test_a_quick_run_uses_the_given_images(command: str, images: Path) -> None:
    """`--quick` alone means digits; with a data set or its folder, it means a small run on them."""
    few = ["--quick", "--dry-run", "--out", images / "none"]
    for words, title in (
        ([], "digits"),
        (["--dataset", "digits"], "digits"),
        (["--dataset", "cifar10", "--data", images], "cifar10"),
        (["--data", images], "cifar10"),
    ):
        done = run(command, "meta-reg", *few, *words)
        assert done.exit_code == 0, done.output
        first = done.stdout.splitlines()[0]
        assert first.startswith(f"missing  {title}, small-cnn")
        assert (", flg-sece" if command == "sweep" else ", ce") in first


@pytest.mark.parametrize(("dataset", "limit"), [("digits", None), ("cifar10", 2000)])
def test_sizes_of_quick_runs(dataset: str, limit: int | None, images: Path) -> None:
    where = {"dataset": dataset, "data": None if dataset == "digits" else images, "quick": True}
    for trial, epochs in ((False, 12), (True, 3)):
        setup = study.chosen_setup(**where, trial=trial)
        assert (setup.model, setup.epochs, setup.limit) == ("small-cnn", epochs, limit)
    own = study.chosen_setup(**where, model="resnet18", epochs=5, limit=3000)
    assert (own.model, own.epochs, own.limit) == ("resnet18", 5, 3000)


def test_a_dry_run_lists_all_runs_and_writes_nothing(finished: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    before = contents_of(out)
    common = ["--dry-run", "--model", "small-cnn", "--seeds", "3", "--methods", "ce", "ce-ts", "focal"]
    words = ["reproduce", "meta-reg", "--data", images, "--epochs", "2", *common]
    seeds = ["done", "done", "missing"]
    done = run(*words, "--out", out)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    listed = {tuple(line.split(", ")[-2:]): line.split()[0] for line in lines[:9]}
    assert [listed["ce", f"seed {seed}"] for seed in range(3)] == seeds
    assert [listed["ce-ts", f"seed {seed}"] for seed in range(3)] == seeds
    assert [listed["focal", f"seed {seed}"] for seed in range(3)] == ["missing"] * 3
    assert lines[9] == "9 runs: 4 done, 5 missing."
    assert contents_of(out) == before

    alone = tmp_path / "alone"  # a result file without its store
    alone.mkdir()
    shutil.copy(out / "results.json", alone)
    for where in (["--out", alone], ["--from", out / "results.json"], ["--from", out / "results.jsonl"]):
        assert run(*words, *where).stdout == done.stdout
    assert [path.name for path in alone.iterdir()] == ["results.json"]
    assert run(*words, "--out", tmp_path / "none").stdout.splitlines()[9] == "9 runs: 9 missing."
    assert not (tmp_path / "none").exists()
    assert run(*words, "--out", out, "--fresh").stdout.splitlines()[9] == "9 runs: 9 missing."
    assert run(*words, "--out", out, "--epochs", "3").stdout.splitlines()[9] == "9 runs: 9 missing."


def test_states_of_runs() -> None:
    key = make_key(settings="s", code="1", data="d", method="ce", seed=0)
    same = {"config": key.config, "code": "1", "failure": None}
    assert state(key, None) == "missing"
    assert state(key, same) == "done"
    assert state(key, same | {"failure": "infinite weights"}) == "failed"
    assert state(key, same | {"config": "other"}) == state(key, same | {"code": "2"}) == "changed"


def test_a_dry_run_refuses_the_folder_of_another_experiment(images: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(
        json.dumps({"config": {"experiment": "bo4sc"}, "versions": {}, "records": []})
    )
    done = run("reproduce", "meta-reg", "--dry-run", "--data", images, "--out", tmp_path)
    assert done.exit_code == 1
    assert "holds results of `python -m studies reproduce bo4sc`" in done.stderr


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_missing_data_folder_is_a_sentence(tmp_path: Path) -> None:
    done = run("reproduce", "meta-reg", "--data", tmp_path / "none", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr.startswith("studies: --data must be an existing folder")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert study.chosen_setup(data="~").folder == tmp_path
    assert study.chosen_setup(dataset="digits", download=True).folder is None


def test_a_quick_ablation_is_small() -> None:
    keys = study.ablation_plan(quick=True, limit=300).keys
    assert {(key["dataset"], key["seed"], key["epochs"], key["limit"]) for key in keys} == {("digits", 0, 3, 300)}
    keys = study.ablation_plan(dataset="digits").keys
    assert {key["seed"] for key in keys} == set(range(study.ABLATION_SEEDS))


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fashion-MNIST at a file:// address."""
    site = tmp_path / "site"
    write_idx(site, "", True)
    files = [(path, hashlib.md5(path.read_bytes()).hexdigest()) for path in site.iterdir()]
    archives = tuple(Archive(path.as_uri(), md5) for path, md5 in files)
    monkeypatch.setitem(SOURCES, "fashion-mnist", replace(SOURCES["fashion-mnist"], archives=archives))
    return site


def test_download_then_train(published: Path, tmp_path: Path) -> None:
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
