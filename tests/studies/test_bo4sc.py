"""A small run of the first paper's experiment: files, records, and the same report from files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrant.methods import Calibrated, Standard
from studies.bo4sc import figures, page
from studies.bo4sc import study as bo4sc
from studies.common.records import (
    MEASURED,
    ClassifierOutput,
    against_truth,
    measure,
    on_sample,
    predict,
    prepare,
    reference,
)
from studies.common.runs import Meter, run_all
from studies.common.shared import seed_count
from studies.common.verdicts import mean
from studies.report import Results, read_results
from tests.studies.cases import TINY, tiny_reproduce

SETS = ("blobs-1.7", "bac")
FIELDS = {"dataset", "method", "seed", *MEASURED, "failure", "seconds", "peak_memory", "members"}
NOT_OF_BAC = {"floor_posterior10", "floor_posterior15", "share_map_above_90"}
"""Fields that a set without label noise, in more than two dimensions, lacks."""
STORED = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The report of one run of two seeds and two sets, in its folder."""
    return tiny_reproduce(tmp_path_factory.mktemp("bo4sc"))


def test_every_set_method_and_seed_has_one_complete_record(written):
    results = read_results(written.parent / "results.json")
    keys = [(r["dataset"], r["method"], r["seed"]) for r in results.records]
    assert sorted(keys) == sorted((d, m, s) for d in SETS for m in (*TINY, "standard-matched") for s in range(2))
    for record in results.records:
        assert set(record) >= FIELDS
        nothing = {"failure", "peak_memory"} | (NOT_OF_BAC if record["dataset"] == "bac" else set())
        assert {name for name in FIELDS if record[name] is None} <= nothing, record
        assert ("correct_high_weight" in record) == (record["method"] == "bo4sc")
    settings = results.config["methods"]
    assert "steps=20" in settings["bo4sc"]["bac"]
    assert "steps=5" in settings["bo4sc"]["blobs-1.7"]
    assert settings["standard"].startswith("Standard(")


def test_the_files_of_a_run(written):
    for name in ("figure-1", "figure-2", "figure-3"):
        for suffix in ("svg", "png"):
            assert (written.parent / "figures" / f"{name}.{suffix}").stat().st_size > 1000
    text = written.read_text()
    for words in ("Table 1", "Paired differences", "set for 20 seeds, and this run has 2", "measured, not judged"):
        assert words in text
    weights = figures.read(written.parent / "results.json")["weights"]
    assert weights["epochs"][-1] == 5
    assert len(weights["history"]) == len(weights["epochs"]) <= figures.HISTORY_ROWS + 1


def test_the_report_comes_from_files_alone(written, tmp_path, capsys):
    for name in ("results.json", "results.jsonl"):
        again = bo4sc.reproduce(source=written.parent / name, out=tmp_path)
        assert again.read_text() == written.read_text()
    assert "ECE-10" in capsys.readouterr().out
    alone = tmp_path / "alone.json"
    alone.write_bytes((written.parent / "results.json").read_bytes())
    assert "There are no figures" in bo4sc.reproduce(source=alone, out=tmp_path).read_text()


def test_settings_file_names_its_origin_or_none(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"bac": {"steps": 3, "hidden": [4]}}')
    settings, origin = bo4sc.chosen_settings(file)
    assert settings == {"bac": {"steps": 3, "hidden": [4]}}
    assert page.origin(Results({"settings_origin": origin}, {}, [])) == "of unknown origin"
    for wrong in ("[1]", "{", '{"bac": {"stepps": 3}}', '{"bac": 3}'):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="must hold arguments of BO4SC"):
            bo4sc.chosen_settings(file)


def test_control_differs_from_bo4sc_only_by_the_weights():
    found = bo4sc.planned_methods(SETS, bo4sc.chosen_settings()[0])
    for dataset in SETS:
        control, method = found[dataset, "standard-matched"], found[dataset, "bo4sc"]
        for field in ("hidden", "epochs", "learning_rate", "batch_size"):
            assert getattr(control, field) == getattr(method, field)


def test_other_seeds_and_some_methods():
    keys = bo4sc.plan(sets=["bac"], first_seed=7, seeds=2, methods=["self-calibrated", "bo4sc"], device="cpu").keys
    assert {(key["method"], key["seed"]) for key in keys} == {
        (name, seed) for name in ("bo4sc", "standard-matched", "self-calibrated") for seed in (7, 8)
    }
    assert [seed_count(), seed_count(quick=True), seed_count(7, quick=True)] == [20, 3, 7]
    with pytest.raises(ValueError, match=r"methods must be among standard, .* got bosc"):
        bo4sc.plan(sets=["bac"], methods=["bosc"])


def test_calibrators_share_one_trained_network():
    prepared = prepare("blobs-1.7", 0)
    base = Standard(epochs=5)
    plan = [("standard", base, prepared), ("isotonic", Calibrated("isotonic-confidence", base), prepared)]
    alone, behind = run_all(plan)
    assert behind.fitted.model is alone.fitted
    assert behind.cost.seconds > alone.cost.seconds


def test_isotonic_confidence_keeps_the_class_and_can_fall_below_chance():
    """As published: the confidence belongs to the network's class, even where another class has more.

    The validation labels are swapped, so that the network is wrong wherever it is sure.
    """
    prepared = prepare("spirals-3.5", 0)
    turned = replace(prepared.task.val, labels=1 - prepared.task.val.labels)
    prepared = replace(prepared, task=replace(prepared.task, val=turned))
    base = Standard(epochs=300)
    standard, isotonic = run_all(
        [("standard", base, prepared), ("isotonic", Calibrated("isotonic-confidence", base), prepared)]
    )
    x = prepared.scale(prepared.problem.test[0])
    before, after = predict(standard.fitted, x), predict(isotonic.fitted, x)
    np.testing.assert_array_equal(before.classes, after.classes)
    below = after.confidence < 0.5
    assert below.any()
    assert (after.probs.max(1)[below] > after.confidence[below]).all()
    assert measure(isotonic.fitted, prepared)["share_below_chance"] == pytest.approx(below.mean())


def test_the_exact_posterior_is_its_own_truth():
    truth = reference("blobs-1.3")
    found = ClassifierOutput(truth.posterior, truth.posterior.argmax(1), truth.posterior.max(1))
    assert against_truth(found, truth.posterior) == pytest.approx({"true_ece": 0, "mean_abs_confidence_truth": 0})
    assert truth.grid is not None
    assert reference("bac", 100).grid is None


def test_flipped_labels_are_known():
    clean, noisy = prepare("blobs-1.7", 3), prepare("blobs-1.7", 3, flip=0.2)
    changed = (clean.task.train.labels != noisy.task.train.labels).numpy()
    np.testing.assert_array_equal(changed, noisy.flipped)
    assert changed.sum() == 140
    np.testing.assert_array_equal(clean.task.val.labels, noisy.task.val.labels)


def test_the_meter_shares_a_populations_time():
    meter = Meter()
    with meter([3, 5]):
        block = np.ones(30_000_000)
    assert block.sum() > 0
    assert meter.costs[3] == meter.costs[5]
    assert meter.costs[3].members == 2
    if meter.costs[3].peak_memory is not None:
        assert meter.costs[3].peak_memory > 200_000_000


@pytest.mark.parametrize("name", ["blobs-1.3", "bac"])
def test_one_prediction_call_equals_separate_calls(name):
    prepared = prepare(name, 0)
    fitted = Standard(hidden=(4,), epochs=5).fit(prepared.task)
    fresh = reference(name, 300)
    record = measure(fitted, prepared, fresh)
    x, labels = prepared.problem.test
    assert record["ece15"] == pytest.approx(on_sample(predict(fitted, prepared.scale(x)), labels)["ece15"], rel=1e-5)
    found = against_truth(predict(fitted, prepared.scale(fresh.inputs)), fresh.posterior)
    assert record["true_ece"] == pytest.approx(found["true_ece"], rel=1e-4)
    if fresh.grid is None:
        assert record["share_map_above_90"] is None
    else:
        on_map = predict(fitted, prepared.scale(fresh.grid)).confidence > 0.9
        assert record["share_map_above_90"] == pytest.approx(on_map.mean(), abs=1e-3)


def test_report_of_one_method_makes_no_other_claims(written):
    content = read_results(written.parent / "results.json")
    own = content._replace(records=[r for r in content.records if r["method"] == "self-calibrated"])
    text = page.make_report(own, {}).to_markdown()
    assert "What the printed comparison hides" not in text
    assert "bo4sc: mean ECE-10 below" not in text
    assert "self-calibrated: true ECE at most" in text


def test_a_quick_run_judges_no_targets_and_its_screen_says_so():
    content = read_results(STORED / "bo4sc.json")
    few = content._replace(records=[r for r in content.records if r["seed"] < 3])
    screens = whole, quick = page.to_terminal(content), page.to_terminal(few)
    for text in screens:  # two lines come after it, which name the page and the time
        assert len(text.splitlines()) <= 22
        assert max(map(len, text.splitlines())) <= 100
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in whole.splitlines() if line.startswith("|")]
    (row,) = [row for row in rows if row[:2] == ["blobs-1.7", "bo4sc"]]
    assert (row[2], row[5]) == ("0.016", "0.859")
    assert row[3].startswith(f"{mean(content.records, 'ece10', 'blobs-1.7', 'bo4sc').value:.3f} ± ")
    assert "(in the paper: 5); below isotonic's on" in whole
    assert "cannot decide" not in whole
    assert "3 seeds cannot decide the targets" in quick
    assert "missed" in page.make_report(content, {}).to_markdown()
    page_of_few = page.make_report(few, {}).to_markdown()
    assert "| missed" not in page_of_few
    assert "which are not judged here" in page_of_few
    further = content._replace(records=[r | {"seed": r["seed"] + 1000} for r in content.records])
    assert "bo4sc-more-seeds.json holds others" in page.caveats(content)
    assert "used while" not in page.caveats(further)


def test_one_certain_error_does_not_make_the_nll_infinite():
    probs = np.array([[1.0, 0.0], [0.5, 0.5]])
    found = ClassifierOutput(probs, probs.argmax(1), probs.max(1))
    values = on_sample(found, np.array([1, 0]))
    assert values["nll"] == pytest.approx((-np.log(1e-12) - np.log(0.5)) / 2, rel=1e-6)


def test_a_fitted_set_takes_the_settings_of_its_original(tmp_path, eager):
    own = bo4sc.chosen_settings()[0]["blobs-1.7"] | {"epochs": 10}
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"blobs-1.7": own}))
    name = "fitted-blobs-1.7"
    bo4sc.reproduce(seeds=1, out=tmp_path, device="cpu", sets=[name], methods=["bo4sc"], settings=file)
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["config"]["settings"] == {name: own}
    assert {(r["dataset"], r["method"]) for r in content["records"]} == {(name, "bo4sc"), (name, "standard-matched")}


def test_fitted_sets_are_shown_beside_the_printed_cells():
    text = page.to_terminal(read_results(STORED / "bo4sc-fitted.json"))
    (row,) = (line for line in text.splitlines() if "fitted-blobs-1.7" in line and "bo4sc" in line)
    assert {"0.016", "0.859"} <= {cell.strip() for cell in row.split("|")}
