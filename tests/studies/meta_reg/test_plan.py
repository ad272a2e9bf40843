"""Which runs are planned, on which data, and the command's options; runs that are stored are found again."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from calibrant.methods.catalogue import IMAGE_METHODS, RECIPES, with_recipe
from studies.common.dry_run import state
from studies.common.keys import make_key
from studies.images import SOURCES
from studies.images.published import Archive
from studies.meta_reg import study
from studies.meta_reg.data import prepare
from studies.meta_reg.plan import (
    NETWORK_VERSIONS,
    Setup,
    chosen_methods,
    in_order,
    known_methods,
    runs,
    settings_text,
)
from studies.meta_reg.search import settings
from studies.report import read_results
from tests.studies.cases import invoke
from tests.studies.images.cases import write_idx

pytestmark = pytest.mark.filterwarnings("ignore:.*images, but .*CIFAR-10 has")
TINY = ["--limit", "200", "--epochs", "1", "--seeds", "1", "--methods", "ce"]
NETWORKS = ("small-cnn", "resnet18")
RESULTS = Path(__file__).parents[3] / "results"


def test_a_changed_network_makes_its_stored_runs_out_of_date(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((before, _),), ((other, _),) = (runs(Setup("cifar10", images, m, epochs=1), ["ce"], 1) for m in NETWORKS)
    monkeypatch.setitem(NETWORK_VERSIONS, "small-cnn", "later")
    ((after, _),), ((same, _),) = (runs(Setup("cifar10", images, m, epochs=1), ["ce"], 1) for m in NETWORKS)
    assert before != after
    assert other == same


def test_runs_are_made_seed_by_seed() -> None:
    order = list(in_order(list(IMAGE_METHODS), None))
    assert len(set(order)) == len(order)
    assert [s for _, s in order] == sorted(s for _, s in order)
    assert {s for n, s in order if n == "mmce"} == {0, 1}
    assert {s for n, s in order if n == "ce"} == set(range(5))
    assert [s for _, s in in_order(["mdca"], None)] == [0]
    assert list(in_order(["ce", "mmce"], 1)) == [("ce", 0), ("mmce", 0)]


def test_settings_are_the_same_text_in_every_process() -> None:
    code = "from studies.meta_reg.plan import *;print(*(settings_text(m) for m in known_methods().values()), sep='\\n')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = [settings_text(method) for method in known_methods().values()]
    assert other.splitlines() == here
    assert "0x" not in other


def stored_texts() -> set[str]:
    """The settings of the stored runs, as texts."""
    results = [read_results(file).config["methods"].values() for file in sorted(RESULTS.glob("meta-reg-*.json"))]
    texts = [text.values() if isinstance(text, dict) else [text] for found in results for text in found]
    return {text for found in texts for text in found}


def test_stored_runs_are_found_by_their_settings() -> None:
    """A renamed field would end this: ``STORED_NAMES`` keeps the former name in the text."""
    recipe = replace(RECIPES["short"], epochs=30)
    methods = known_methods() | settings()
    present = {settings_text(with_recipe(method, recipe)) for method in methods.values()}
    fields = {name for text in present for name in re.findall(r"(\w+)=", text)}
    stored = stored_texts()
    assert {name for text in stored for name in re.findall(r"(\w+)=", text)} <= fields
    assert len(stored & present) > len(stored) / 2  # the others were run with other values


def test_parts_are_disjoint_and_depend_on_the_seed() -> None:
    task = prepare("digits", None, 3).task
    sizes = [len(part) for part in (task.train, task.val, task.meta)]
    assert sum(sizes) == 1257 or sum(sizes) == 1258
    assert sizes[0] == pytest.approx(0.8 * sum(sizes), abs=2)
    again, other = prepare("digits", None, 3).task, prepare("digits", None, 4).task
    assert torch.equal(task.train.inputs, again.train.inputs)
    assert not torch.equal(task.train.inputs, other.train.inputs)
    assert task.train.inputs.dtype == torch.uint8
    assert task.train.augment is not None
    assert task.val.augment is None
    assert torch.equal(prepare("digits", None, 3).test.inputs, prepare("digits", None, 4).test.inputs)


def test_a_limit_takes_every_class_in_proportion() -> None:
    prepared = prepare("digits", None, 0, limit=500)
    task = prepared.task
    assert len(prepared.test) == 100
    assert torch.equal(prepared.test.inputs, prepare("digits", None, 1, limit=500).test.inputs)
    labels = torch.cat([task.train.labels, task.val.labels, task.meta.labels])
    counts = labels.bincount()
    assert len(labels) == 500
    assert counts.min() >= 45
    assert counts.max() <= 55


def test_small_parts_get_small_batches_and_keys_name_epochs() -> None:
    setup = Setup("digits", epochs=3)
    assert setup.trained_by().batch_size < 64
    ((key, method),) = runs(setup, ["ce"], 1)
    assert key["epochs"] == method.recipe.epochs == 3
    ((other, _),) = runs(Setup("digits", epochs=4), ["ce"], 1)
    assert key.name != other.name


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
def test_a_quick_run_uses_the_given_images(command: str, images: Path) -> None:
    """`--quick` alone means digits; with a data set or its folder, it means a small run on them."""
    few = ["--quick", "--dry-run", "--out", images / "none"]
    for words, title in (
        ([], "digits"),
        (["--dataset", "digits"], "digits"),
        (["--dataset", "cifar10", "--data", images], "cifar10"),
        (["--data", images], "cifar10"),
    ):
        done = invoke(command, "meta-reg", *few, *words)
        assert done.exit_code == 0, done.output
        first = done.stdout.splitlines()[0]
        assert first.startswith(f"missing  {title}, small-cnn")
        assert (", flg-sece" if command == "sweep" else ", ce") in first


def test_sizes_of_quick_runs(images: Path) -> None:
    for dataset, limit in (("digits", None), ("cifar10", 2000)):
        where: dict[str, Any] = {"dataset": dataset, "data": images, "quick": True}
        for trial, epochs in ((False, 12), (True, 3)):
            setup = study.chosen_setup(**where, trial=trial)
            assert (setup.model, setup.epochs, setup.limit) == ("small-cnn", epochs, limit)
        own = study.chosen_setup(**where, model="resnet18", epochs=5, limit=3000)
        assert (own.model, own.epochs, own.limit) == ("resnet18", 5, 3000)
    assert {key["seed"] for key in study.ablation_plan(quick=True, limit=300).keys} == {0}
    assert {key["seed"] for key in study.ablation_plan(dataset="digits").keys} == set(range(study.ABLATION_SEEDS))


def test_a_dry_run_lists_all_runs_and_writes_nothing(finished: Path, images: Path, tmp_path: Path) -> None:
    out, alone = tmp_path / "out", tmp_path / "alone"  # the second is a result file without its store
    shutil.copytree(finished, out)
    alone.mkdir()
    shutil.copy(out / "results.json", alone)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    words = ["reproduce", "meta-reg", "--data", images, "--epochs", "2", "--dry-run", "--model", "small-cnn"]
    words += ["--seeds", "3", "--methods", "ce", "ce-ts", "focal"]
    done = invoke(*words, "--out", out)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    listed = {tuple(line.split(", ")[-2:]): line.split()[0] for line in lines[:9]}
    stored = {(method, seed) for method in ("ce", "ce-ts") for seed in ("seed 0", "seed 1")}
    assert {run for run, of in listed.items() if of == "done"} == stored
    assert lines[9] == "9 runs: 4 done, 5 missing."
    for where in (["--out", alone], ["--from", out / "results.json"], ["--from", out / "results.jsonl"]):
        assert invoke(*words, *where).stdout == done.stdout
    for where in (["--out", tmp_path / "none"], ["--out", out, "--fresh"], ["--out", out, "--epochs", "3"]):
        assert invoke(*words, *where).stdout.splitlines()[9] == "9 runs: 9 missing."
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before


def test_states_of_runs() -> None:
    key = make_key(settings="s", code="1", data="d", method="ce", seed=0)
    same = {"config": key.config, "code": "1", "failure": None}
    assert (state(key, None), state(key, same), state(key, same | {"failure": "x"})) == ("missing", "done", "failed")
    assert state(key, same | {"config": "other"}) == state(key, same | {"code": "2"}) == "changed"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert study.chosen_setup(data="~").folder == tmp_path


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
    where = ["--dataset", "fashion-mnist", "--data", tmp_path / "new", "--out", tmp_path / "out"]
    done = invoke("reproduce", "meta-reg", *where, "--download", "--device", "cpu", *TINY)
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "new" / "fashion-mnist").iterdir())) == 4
    assert "images, but the training part of Fashion-MNIST has 60,000" in done.stderr
    assert "Warning:" not in done.stderr  # no line of code
    assert "[1/1] Fashion-MNIST, ce, seed 0" in done.stderr
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [record["method"] for record in content["records"]] == ["ce"]


def test_a_failed_download_is_a_sentence(published: Path, tmp_path: Path) -> None:
    for path in published.iterdir():
        path.unlink()
    done = invoke(
        "reproduce", "meta-reg", "--dataset", "fashion-mnist", "--data", tmp_path / "new", "--download", *TINY
    )
    assert done.exit_code == 1
    assert "could not be downloaded" in done.stderr
    assert "Traceback" not in done.output
