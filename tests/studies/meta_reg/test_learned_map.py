"""Post-hoc maps of the network of `recommended` are fitted on all held-out images and scored on the test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.posthoc import Temperature
from studies.meta_reg import learned_map
from studies.report import write_results


def run(seed: int = 0, method: str = "recommended", failure: str | None = None) -> dict[str, Any]:
    setup = {"dataset": "digits", "model": "small-cnn", "recipe": "short", "epochs": 1, "limit": 0}
    scores = {"error": 0.1, "nll": 0.2, "ece": 0.03, "floor": 0.02}
    return {**setup, "method": method, "seed": seed, "failure": failure, **scores}


@pytest.fixture
def logits(tmp_path: Path) -> Path:
    """Over-confident logits of a network that `recommended` shares with `ce-average`."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, samples in (("val", 300), ("meta", 500), ("test", 4000)):
        scores = rng.normal(size=(samples, 4))
        arrays[f"{part}_labels"] = (scores + rng.gumbel(size=scores.shape)).argmax(1).astype(np.int16)
        arrays[f"{part}_logits"] = (3 * scores).astype(np.float16)
    path = tmp_path / "logits" / "digits-short-ce-average-0.npz"
    path.parent.mkdir()
    np.savez_compressed(path, **arrays)
    return path


def test_maps_are_fitted_on_both_held_out_parts(logits: Path) -> None:
    found = learned_map.compare(logits, run(), ["temperature", "vector"])
    stored = np.load(logits)
    held = [np.concatenate([stored[f"{part}_{name}"] for part in ("val", "meta")]) for name in ("logits", "labels")]
    assert found["held_out"] == 800
    calibrated = Temperature().fit(held[0].astype(float), held[1]).predict_proba(stored["test_logits"].astype(float))
    own = -np.log(calibrated[np.arange(4000), stored["test_labels"]]).mean()
    assert found["temperature"]["nll"] == pytest.approx(own, rel=1e-5)
    assert found["choice"] == "temperature"
    assert found["auto"] == found["temperature"]
    assert found["learned"] == {"error": 0.1, "nll": 0.2, "ece": 0.03, "floor": 0.02}


def test_runs_without_logits_are_left_out(logits: Path, tmp_path: Path) -> None:
    records = [run(), run(1), run(method="ce"), run(2, failure="diverged")]
    write_results(tmp_path / "results.json", {"experiment": "meta-reg"}, records)
    out = tmp_path / "map.json"
    learned_map.main([str(tmp_path), "--candidates", "temperature", "--out", str(out)])
    (found,) = learned_map.read_results(out).records
    assert found["seed"] == 0
