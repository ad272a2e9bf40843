"""The comparison of the recipes with the usual loops, with one epoch of one task."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from calibrant.report.results import read_results
from studies.benchmarks import recipes


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["recipes", *map(str, arguments)])
    recipes.main()
    return capsys.readouterr().out


def test_one_row_of_the_comparison_and_its_store(monkeypatch, capsys, tmp_path):
    out = tmp_path / "recipes.json"
    command = ("--tasks", "table", "--epochs", 1, "--seeds", 1, "--out", out)
    assert "Time is up" in call(monkeypatch, capsys, *command, "--minutes", -1)
    assert not out.exists()
    printed = call(monkeypatch, capsys, *command)
    records = read_results(out).records
    assert [r["who"] for r in records] == list(recipes.WHO)
    assert "| table | 1 | small perceptron: AdamW, one cycle up to " in printed
    assert "{" not in call(monkeypatch, capsys, *command)  # nothing is left to do
    again = call(monkeypatch, capsys, *command, "--again")
    assert again.count("'who'") == 1
    ours, rival = dict(recipes.chosen(records))["table"][0]
    assert rival["val_nll"] == min(r["val_nll"] for r in records if r is not ours)


def test_the_test_part_is_not_read_while_recipes_are_chosen():
    record = recipes.measure("table", 100, "SGD x 1", 1, "cpu", {})
    assert record["val_nll"] > 0
    assert "nll" not in record
    with pytest.raises(KeyError):
        recipes.measure("unknown", 100, "SGD x 1", 1, "cpu", {})


def test_image_tasks_and_the_rivals_on_a_gpu(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    for part in range(2):
        y = np.arange(40) % 4
        x = generator.integers(0, 255, (40, 8, 8, 3)).astype("uint8")
        np.savez(tmp_path / f"part-{part}.npz", x=x, y=y)
    monkeypatch.setattr(recipes, "IMAGES", [tmp_path / "part-0.npz", tmp_path / "part-1.npz"])
    for who in ("fit", "SGD x 1"):
        record = recipes.measure("images-transformer", 3, who, 2, "cpu", {"networks": 1})
        assert record["nll"] > 0
    wanted = list(recipes.missing([], ["images-resnet"], range(3, 4), 2, "cuda"))
    assert [who for *_, who in wanted] == [
        "fit", "SGD x 1", "AdamW x 1", "SGD x 1 compiled", "AdamW x 1 compiled"
    ]  # fmt: skip
    shared = {"task": "images-resnet", "seed": 3, "device": "cuda", "method": ""}
    losses = zip(wanted, (1.0, 1.2, 1.1, 1.2, 1.1), (9.0, 3.0, 4.0, 1.0, 2.0), strict=True)
    records = [shared | {"who": job[2], "val_nll": loss, "seconds": seconds} for job, loss, seconds in losses]
    ((_, ((ours, rival),)),) = recipes.chosen(records)
    assert (ours["seconds"], rival["who"], rival["seconds"]) == (9.0, "AdamW x 1", 2.0)


def test_crops_keep_the_pixels_and_the_labels():
    images = torch.arange(1.0, 1 + 6 * 3 * 8 * 8).reshape(6, 3, 8, 8)
    pair = recipes.Pair(images, torch.arange(6))
    ((plain, labels),) = recipes.Crops(pair, shuffle=False)
    assert torch.equal(plain, images)
    for batch, labels in recipes.Crops(pair, shuffle=True, size=4):
        for crop, label in zip(batch, labels, strict=True):
            kept = set(crop[crop != 0].tolist())
            assert len(kept) >= 3 * 16
            assert kept <= set(images[label].flatten().tolist())


def test_image_tasks_need_files():
    with pytest.raises(ValueError, match="Give --images"):
        recipes.CASES["images-wide"](3)
