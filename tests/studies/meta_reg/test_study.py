"""The study of the second paper as a user runs it, on images that the test makes: records, runs, keys and commands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.bilevel import Callback, NonFiniteError, Run
from calibrant.methods.catalogue import IMAGE_METHODS
from calibrant.methods.core.results import Failed
from studies.common.store import Store
from studies.meta_reg import training as training_module
from studies.meta_reg.data import prepare
from studies.meta_reg.docs import results_section
from studies.meta_reg.measures import BINS, SCORES
from studies.meta_reg.plan import (
    Setup,
    runs,
)
from studies.meta_reg.search import STUDY as SEARCH
from studies.meta_reg.study import STUDY, ablate, reproduce
from studies.meta_reg.training import EpochCurve, OutOfTime
from tests.studies.cases import invoke
from tests.studies.meta_reg.conftest import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:.*images, but .*CIFAR-10 has")
TINY = ["--limit", "200", "--epochs", "1", "--seeds", "1", "--methods", "ce"]
NETWORKS = ("small-cnn", "resnet18")
RESULTS = Path(__file__).parents[3] / "results"


def records(folder: Path) -> list[dict]:
    return json.loads((folder / "results.json").read_text())["records"]


def test_every_run_has_a_complete_record(finished: Path) -> None:
    found = {(r["method"], r["seed"]): r for r in records(finished)}
    assert found.keys() == {(m, s) for m in SMALL["methods"] for s in (0, 1)}
    for (method, _), record in found.items():
        assert record["failure"] is None
        assert all(math.isfinite(record[name]) for name in (*SCORES, "floor", "seconds", "temperature", "ece_ts"))
        assert (record["epochs"], record["train_size"], record["test_size"]) == (2, 160, 60)
        assert record["bins"]["bins"] == list(BINS)
        assert record["bins"]["ece"][BINS.index(15)] == record["ece"]
        assert record["curve"]["epoch"] == [1, 2]
        assert len(record["shifts"]) == 8
        assert sum(record["diagrams"]["15"]["share"]) == pytest.approx(1)
        assert (record["gamma_mean"] is not None) == ("gamma_std" in record["curve"]) == (method == "flg-sece")
    for seed in (0, 1):  # temperature scaling shares the network of the plain row
        plain, scaled = found["ce", seed], found["ce-ts", seed]
        assert plain["curve"] == scaled["curve"]
        assert plain["temperature"] == pytest.approx(scaled["temperature"], rel=1e-4)
        assert plain["ece_ts"] == pytest.approx(scaled["ece"], rel=1e-3)


def test_a_second_call_trains_nothing(
    finished: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("studies.meta_reg.study.train", lambda *a, **k: pytest.fail("trained again"))
    reproduce(**SMALL, data=images, out=finished)
    assert "Found 8 of 8 runs" in capsys.readouterr().err


def test_the_report_is_made_from_the_file_alone(finished: Path, tmp_path: Path) -> None:
    result = invoke("reproduce", "meta-reg", "--from", str(finished / "results.json"), "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text()
    for text in ("Targets", "CIFAR-10, small-cnn, short recipe, 2 epochs", "4.81 ± 0.12", "Figure 5", "4.079"):
        assert text in page
    assert {p.stem[:8] for p in (tmp_path / "figures").glob("*.png")} == {f"figure-{n}" for n in (2, 3, 4, 5)}


def test_the_results_section_has_targets_tables_and_searches(finished: Path) -> None:
    results = STUDY.read([finished / "results.json"] * 2)
    assert len(results.records) == 8  # duplicate runs count once
    tried = [r | {"method": "flg-sece-h-0.5", "nll_val": 0.0} for r in results.records if r["method"] == "flg-sece"]
    text = results_section(results._replace(records=results.records + tried))
    assert text.count("## Targets") == 1
    assert "  - 2 seeds: `ce`, `ce-ts`, `flg-sece`, `recommended`\n" in f"{text}\n"
    assert "4.81 ± 0.12" in text
    before, _, after = text.partition("## Settings of `flg-sece` on the validation part")
    assert "h-0.5" not in before
    assert "Lowest NLL: h 0.5." in after


class Interrupted(Exception):
    """Stands for a machine that is lost."""


def test_interrupted_run_continues_from_its_checkpoint(
    images: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Fragile(training_module.TimedCheckpoint):
        def on_start(self, run) -> None:
            super().on_start(run)
            seen.append(run.step)

        def on_step(self, run) -> None:
            super().on_step(run)
            if run.step == run.outer_steps // 2 and len(seen) == 1:
                raise Interrupted

    Fragile.__name__ = "TimedCheckpoint"
    monkeypatch.setattr(training_module, "TimedCheckpoint", Fragile)
    settings = SMALL | {"methods": ["flg-sece"], "seeds": 1, "data": images, "out": tmp_path, "checkpoint_every": 0.0}
    with pytest.raises(Interrupted):
        reproduce(**settings)
    assert not Store(tmp_path).current
    reproduce(**settings)
    assert seen[0] == 0
    assert seen[1] > 0
    (own,) = records(tmp_path)
    (whole,) = [r for r in records(finished) if (r["method"], r["seed"]) == ("flg-sece", 0)]
    assert own["curve"]["epoch"] == whole["curve"]["epoch"]
    assert own["nll"] == pytest.approx(whole["nll"], rel=1e-2)
    assert not list((tmp_path / "checkpoints").rglob("*.safetensors"))


def test_a_damaged_checkpoint_is_named(images: Path, tmp_path: Path) -> None:
    ((key, _),) = runs(Setup("cifar10", images, "small-cnn", epochs=1), ["ce"], 1)
    path = Store(tmp_path).checkpoint(key) / key.config / "network-0.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"network-0\.safetensors .* Delete the folder .* to start again"):
        reproduce(**SMALL | {"methods": ["ce"], "seeds": 1, "epochs": 1}, data=images, out=tmp_path)


def test_command_ends_when_time_is_up(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    settings = SMALL | {"methods": ["ce"], "seeds": 1, "data": images, "out": tmp_path}
    with pytest.raises(ValueError, match="No run was finished"):
        reproduce(**settings, minutes=0.0)
    assert "Time is up. Run the same command again to continue." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["flg-sece-published", "published-sigmoid"])
def test_a_published_gamma_net_is_the_same_after_a_stop(images: Path, tmp_path: Path, name: str) -> None:
    planned = runs(Setup("cifar10", images, "small-cnn", epochs=1), [name], 1)
    prepared, device = prepare("cifar10", images, 0, model="small-cnn"), torch.device("cpu")
    (whole,) = training_module.train(planned, prepared, device=device).values()
    with pytest.raises(OutOfTime):
        training_module.train(planned, prepared, device=device, folder=tmp_path, deadline=0.0)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    (resumed,) = training_module.train(planned, prepared, device=device, folder=tmp_path).values()
    for score in ("gamma_mean", "gamma_std"):
        assert resumed[score] == pytest.approx(whole[score], rel=1e-4)


def test_wrong_arguments_are_sentences(images: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"dataset": "cifar10"}, "--data must name the folder"),
        ({"dataset": "cifar10", "data": images, "model": "vgg"}, "--model must be one of resnet18"),
        ({"dataset": "cifar10", "data": images, "methods": ["cee"]}, "methods must be among .* got cee"),
        ({"dataset": "cifar10", "data": images, "limit": 40}, "--limit must leave"),
        ({"dataset": "cifar10n-worse", "data": images}, "--noisy-labels must name the file"),
        ({"dataset": "cifar10", "data": images, "noisy_labels": images / "x.npz"}, "except with CIFAR-10N"),
        ({"dataset": "cifar", "limit": 100}, "--dataset must be one of cifar10"),
        ({"dataset": "cifar10", "data": images / "none"}, "--data must be an existing folder"),
    ):
        with pytest.raises(ValueError, match=message):
            reproduce(**options, out=tmp_path)
    for command in (ablate, SEARCH.run):
        with pytest.raises(ValueError, match="--dataset must have its published labels"):
            command(dataset="cifar10n-worse", data=images, out=tmp_path)


def test_only_the_training_part_has_noisy_labels(images: Path, tmp_path: Path) -> None:
    clean = np.load(images / "cifar10.npz")["y_train"]
    noisy = np.where(np.arange(len(clean)) % 5 < 2, (clean + 3) % 10, clean)
    np.savez(tmp_path / "labels.npz", worse_label=noisy)
    prepared = prepare("cifar10n-worse", images, 0, labels=tmp_path / "labels.npz")
    usual = prepare("cifar10", images, 0)
    wrong = prepared.task.train.labels != usual.task.train.labels
    assert torch.equal(prepared.task.train.inputs, usual.task.train.inputs)
    assert torch.equal(prepared.wrong, wrong)
    assert float(wrong.double().mean()) == pytest.approx(0.4, abs=0.1)
    for own, other in ((prepared.task.val, usual.task.val), (prepared.task.meta, usual.task.meta)):
        assert torch.equal(own.labels, other.labels)
    out = tmp_path / "out"
    command = ["reproduce", "meta-reg", "--dataset", "cifar10n-worse", "--model", "small-cnn", "--epochs", "1"]
    command += ["--data", str(images), "--noisy-labels", str(tmp_path / "labels.npz"), "--seeds", "1"]
    command += ["--methods", "ce", "weights", "weights-ts", "--out", str(out)]
    result = invoke(*command, "--device", "cpu")
    assert result.exit_code == 0, result.output
    found = {record["method"]: record for record in records(out)}
    assert set(found) == {"ce", "weights", "weights-ts"}
    assert found["weights"]["wrong_share"] == pytest.approx(float(wrong.double().mean()), rel=1e-4)
    assert 0 <= found["weights"]["weight_wrong"] <= 1
    assert found["ce"]["weight_wrong"] is None
    page = (out / "report.html").read_text()
    assert "weights: error at least 3 points below" in page
    assert "The paper's claims" not in page


def test_networks_of_other_processes_are_skipped(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process trains ``ce``, another must not train the same network for ``ce-ts``."""
    (first, _), _ = runs(Setup("cifar10", images, "small-cnn", epochs=2), ["ce", "ce-ts"], 1)
    monkeypatch.setattr("studies.meta_reg.study.train", lambda *a, **k: pytest.fail("trained twice"))
    with Store(tmp_path).claim(first), pytest.raises(ValueError, match="No run was finished"):
        reproduce(**SMALL | {"methods": ["ce", "ce-ts"], "seeds": 1}, data=images, out=tmp_path)


class Poison(Callback):
    """Makes the running statistics of normalisation layers NaN, as an overflow would; the weights stay finite."""

    def on_step(self, run: Run) -> None:
        spoiled = {k: v * torch.nan if v.is_floating_point() else v for k, v in run.state.buffers.items()}
        run.state = run.state._replace(buffers=spoiled)


def test_the_curve_reports_logits_that_are_not_finite(images: Path) -> None:
    prepared = prepare("cifar10", images, 0, model="small-cnn")
    method = IMAGE_METHODS["ce"].method
    with pytest.raises(NonFiniteError, match="logits were not finite after outer step"):
        method.fit(prepared.task, callbacks=[Poison(), EpochCurve(prepared.test)])


def test_a_diverged_run_is_recorded_and_the_study_goes_on(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [Failed("overflow", 10)]
    monkeypatch.setattr(training_module, "network_of", lambda wanted, fitted: lost.pop() if lost else fitted)
    reproduce(**SMALL | {"methods": ["ce", "focal"], "seeds": 1, "epochs": 1}, data=images, out=tmp_path)
    failures = {r["method"]: r["failure"] for r in records(tmp_path)}
    assert "logits of the trained network were not finite" in failures["ce"]
    assert failures["focal"] is None
