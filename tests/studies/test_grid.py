"""The grid search: scores by hand, the choice, and short trainings within long ones."""

import json
import math
from pathlib import Path

import pytest
import torch

from calibrant.methods import BO4SC
from studies.bo4sc import grid, search, study
from studies.bo4sc.study import chosen_settings
from studies.report import read_results
from studies.sets import load_problem

TINY = {
    "steps": [2],
    "outer_learning_rate": [100.0, 3000.0],
    "alpha": [30.0],
    "width": [8],
    "epochs": [5, 10],
    "learning_rate": [0.02],
}


def test_scores_by_hand():
    probs = torch.tensor([[[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]]], dtype=torch.float64)
    found = search.score(probs.log(), torch.tensor([[0, 2]]))
    assert found["bce"] == pytest.approx((-math.log(0.8) - math.log(1 - 0.5)) / 2)  # right; wrong
    assert found["nll"] == pytest.approx((-math.log(0.8) - math.log(0.3)) / 2)
    assert found["ece10"] == pytest.approx((0.2 + 0.5) / 2)
    assert found["accuracy"] == 0.5


def test_score_is_finite_for_certain_errors_and_nan_after_failure():
    logits = torch.tensor([[[80.0, 0.0], [80.0, 0.0]]])
    assert search.score(logits, torch.tensor([[0, 1]]))["bce"] == pytest.approx(40.0)
    failed = search.score(logits * torch.nan, torch.tensor([[0, 1]]))
    assert math.isnan(failed["bce"])
    assert failed["bce_by_seed"] is None


def test_choice_has_lowest_loss_among_settings_of_usual_accuracy():
    rows = [(0.30, 0.90), (0.20, 0.895), (0.10, 0.85), (math.nan, math.nan), (0.25, 0.91)]
    records = [{"bce": bce, "accuracy": accuracy} for bce, accuracy in rows]
    assert grid.choose(records)["bce"] == 0.20
    failed = {"bce": None, "accuracy": None}  # a file has null where a training failed
    assert grid.choose([failed, {"bce": 0.3, "accuracy": 0.9}])["bce"] == 0.3
    with pytest.raises(ValueError, match="failed"):
        grid.choose([records[3]])


def test_a_grid_names_its_settings():
    assert grid.complete({"steps": [7]}) == {**{k: list(v) for k, v in grid.GRID.items()}, "steps": [7]}
    with pytest.raises(ValueError, match="above zero"):
        grid.complete({"learning_rate": [0.0]})


def test_scoring_points_do_not_move_the_weights():
    task, held = search.search_task("blobs-1.3", search.FIRST_SEED)
    assert (len(task.train), len(task.val), len(held)) == (700, 200, 100)
    labels = torch.as_tensor(load_problem("blobs-1.3", search.FIRST_SEED).val[1])
    assert torch.equal(torch.cat([task.val.labels, held.labels]), labels)
    assert not (task.val.inputs[:, None] == held.inputs).all(-1).any()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("grid")
    page = grid.STUDY.run(**TINY, seeds=1, out=out, device="cpu", sets=("blobs-1.7",))
    assert page.exists()
    return out


def test_long_training_includes_the_short_one(folder):
    task, held = search.search_task("blobs-1.7", search.FIRST_SEED)
    records = read_results(folder / "results.json").records
    assert len(records) == 4
    for record in (records[0], records[3]):  # the shorter and the longer, of two settings
        alone = BO4SC(**{**grid.as_settings(record), "hidden": (8, 8)}).fit(task)
        log_probs = alone.probs(held.inputs).log().unsqueeze(0)
        # A population adds up in another order than a single run, and steps enlarge what rounding leaves.
        assert record["bce"] == pytest.approx(search.score(log_probs, held.labels.unsqueeze(0))["bce"], abs=1e-4)


def test_settings_are_arguments_of_the_method(folder):
    results = read_results(folder / "results.json")
    written = json.loads((folder / "settings.json").read_text())
    assert written["origin"]["grid"] == results.config["grid"]
    assert set(written["origin"]) == {"command", "grid", "seeds", "criterion", "date", "calibrant"}
    assert chosen_settings(folder / "settings.json")[1] == written["origin"]
    settings = written["blobs-1.7"]
    assert settings == results.config["chosen"]["blobs-1.7"]
    assert set(settings) == {"steps", "outer_learning_rate", "alpha", "hidden", "epochs", "learning_rate"}
    assert BO4SC(**{**settings, "hidden": tuple(settings["hidden"])}).steps == 2
    assert results.config["seeds"] == [10_000]


def test_the_report_comes_from_the_file_alone(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "run_jobs", None)
    for name in ("results.json", "results.jsonl"):
        again = grid.STUDY.run(source=folder / name, out=tmp_path)
        assert again.read_text() == (folder / "report.html").read_text()
        assert (tmp_path / "settings.json").read_text() == (folder / "settings.json").read_text()


def test_stored_search_reproduces_the_package_settings(tmp_path):
    """The file names the version that searched, not the one that writes. An installed package has no results."""
    grid.STUDY.run(source=Path(__file__).parents[2] / "results" / "bo4sc-grid.json", out=tmp_path)
    assert chosen_settings(tmp_path / "settings.json") == chosen_settings()


def test_settings_of_one_set_serve_a_run_of_that_set(folder):
    usual = {"seeds": 1, "device": "cpu", "settings": folder / "settings.json"}
    with pytest.raises(ValueError, match=r"got none for blobs-1\.3, .* by --sets: blobs-1\.7\.$"):
        study.plan(**usual)
    planned = study.plan(**usual, sets=["blobs-1.7"])
    assert {key["dataset"] for key in planned.keys} == {"blobs-1.7"}
    assert any("hidden=(8, 8)" in key.settings for key in planned.keys if key["method"] == "bo4sc")
    with pytest.raises(ValueError, match=r"sets must be among .* got moons"):
        study.plan(**usual, sets=["moons"])
