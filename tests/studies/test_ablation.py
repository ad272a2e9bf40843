"""The ablation: differences between variants, and scores of the weights in known cases."""

import dataclasses

import numpy as np
import pytest
import torch

from calibrant.methods import BO4SC, METHODS, Entry, Mixture, SelfCalibrated, Standard
from studies.bo4sc import ablation, variants
from studies.common.records import prepare
from studies.report import read_results
from tests.studies.cases import Fixed


@pytest.fixture
def tiny(monkeypatch):
    small = {"hidden": (8, 8), "epochs": 5}
    for name, method in (
        ("standard", Standard(**small)),
        ("bo4sc", BO4SC(**small)),
        ("self-calibrated", SelfCalibrated(**small, folds=2)),
    ):
        monkeypatch.setitem(METHODS, name, Entry(method, ""))


def test_variants_differ_from_bo4sc_as_their_names_say():
    found = {v.name: v.method for v in variants.variants()}
    assert len(found) == len(variants.variants())
    base = dataclasses.asdict(found["bo4sc"])

    def changed(name):
        own = dataclasses.asdict(found[name])
        return {key: value for key, value in own.items() if value != base[key]}

    assert changed("T = 1") == {"steps": 1}
    assert changed("η_w × 10") == {"outer_learning_rate": 10 * 1.5 * 700}
    assert changed("α = 5") == {"alpha": 5.0}
    assert changed("implicit") == {"hypergradient": "implicit"}
    assert changed("outer NLL") == {"outer_loss": "nll"}
    assert changed("weights: neighbours") == {"weights": "neighbours"}
    assert changed("l2-unit alone") == {"weights": None, "also": ("l2-unit",)}
    assert changed("weights + label-noise") == {"also": ("label-noise",)}
    assert changed("restart, T = 100") == {"restart": True, "steps": 100}
    assert all(changed(n) for n, m in found.items() if isinstance(m, BO4SC) and n != "bo4sc")


def test_perfect_weights_have_perfect_scores():
    prepared = prepare("blobs-1.7", 0)
    labels = prepared.task.train.labels
    truth = prepared.problem.posterior(prepared.problem.train[0])
    of_label = torch.as_tensor(truth[np.arange(len(labels)), labels.numpy()])
    story = variants.weight_story(Fixed(torch.as_tensor(truth), sample_weights=of_label), prepared)
    assert story["weight_truth"] == pytest.approx(1.0)
    assert story["weight_auroc"] > 0.98
    below = of_label[torch.as_tensor(truth.argmax(1)) != labels] < 0.5
    assert story["misclassified_low_weight"] == pytest.approx(below.double().mean().item())
    backwards = variants.weight_story(Fixed(torch.as_tensor(truth), sample_weights=1 - of_label), prepared)
    assert backwards["weight_truth"] == pytest.approx(-1.0)


def test_constant_weights_have_no_scores():
    prepared = prepare("blobs-1.7", 0)
    story = variants.weight_story(Fixed(torch.full((700, 5), 0.2), sample_weights=torch.ones(700)), prepared)
    assert story == dict.fromkeys(variants.STORY)


def test_variants_of_self_calibrated_differ_as_their_names_say():
    found = {v.name: v for v in variants.variants() if v.group == "self-calibrated"}
    base = dataclasses.asdict(found["self-calibrated"].method)
    alike = {name for name, v in found.items() if dataclasses.asdict(v.method) == base}
    assert alike == {"self-calibrated", *(name for name, v in found.items() if v.after)}  # these share one training
    assert found["without refit"].method.refit is False
    assert found["two folds"].method.folds == 2
    trained = Mixture(("a", "b"), 2.0, torch.ones(3), 0.1, "logits")
    changed = {name: v.after(trained) for name, v in found.items() if v.after}
    assert changed["mean of probabilities"].pool == "probs"
    assert (changed["without biases"].temperature, changed["without biases"].bias) == (2.0, None)
    assert (changed["without lapses"].temperature, changed["without lapses"].lapse) == (2.0, 0.0)
    last = changed["without the last step"]
    assert (last.temperature, last.bias, last.lapse) == (1.0, None, 0.0)
    assert changed["one of its networks"].networks == ("a",)


def test_phi_without_learning_stays_at_its_start(tiny):
    """A step of 1e-12 in the logarithm changes no digit of a float32 L2 strength."""
    still = next(v.method for v in variants.variants() if v.name == "φ stays at its start")
    task = prepare("blobs-1.7", 0).task
    first = dataclasses.replace(still, epochs=still.steps)
    torch.testing.assert_close(still.fit(task).extras["l2"], first.fit(task).extras["l2"], rtol=1e-5, atol=0)


def test_one_row_for_each_variant_set_and_seed(tiny, tmp_path, capsys):
    only = ["standard", "η_w × 10", "self-calibrated", "without the last step"]
    page = ablation.STUDY.run(seeds=2, out=tmp_path, device="cpu", sets=("blobs-1.7",), only=only)
    results = read_results(tmp_path / "results.json")
    assert [r["method"] for r in results.records[::2]] == ["standard", "bo4sc", *only[1:]]
    assert all(r["failure"] is None and 0 < r["nll"] < 3 for r in results.records)
    with_temperature, without = (r["nll"] for r in results.records[6::2])
    assert with_temperature != without
    text = capsys.readouterr().out
    assert "η_w × 10" in text
    own = next(line for line in text.splitlines() if line.startswith("| self-calibrated "))
    assert own.split("|")[-2].split() == ["0.0000", "±", "0.0000"]  # its Δ is to itself, not to bo4sc
    for name in ("results.json", "results.jsonl"):
        again = ablation.STUDY.run(source=tmp_path / name, out=tmp_path / "again")
        assert again.read_text() == page.read_text()


def test_report_from_variants_with_different_numbers_of_seeds(tiny, tmp_path):
    ablation.STUDY.run(seeds=2, out=tmp_path, device="cpu", sets=("blobs-1.7",), only=["standard"])
    page = ablation.STUDY.run(seeds=1, out=tmp_path, device="cpu", sets=("bac",), only=["T = 1"])
    results = read_results(tmp_path / "results.json")
    assert [(r["method"], r["dataset"], r["seed"]) for r in results.records] == [
        ("standard", "blobs-1.7", 0),
        ("standard", "blobs-1.7", 1),
        ("bo4sc", "blobs-1.7", 0),
        ("bo4sc", "blobs-1.7", 1),
        ("bo4sc", "bac", 0),
        ("T = 1", "bac", 0),
    ]
    assert results.config["sets"] == ["blobs-1.7", "bac"]
    assert "T = 1" in page.read_text()


def test_unknown_variant_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"variants among .* got T = 7"):
        ablation.STUDY.run(out=tmp_path, device="cpu", only=["T = 7"])
