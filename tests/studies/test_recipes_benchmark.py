"""The comparison of the recipes with the usual loops, with one epoch of one task."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
import torch

from studies.benchmarks import real_tasks, recipe_tasks, recipes
from studies.report import read_results


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
    options = recipes.Options(epochs=1)
    record = recipes.measure("table", 100, "SGD x 1", options)
    assert record["val_nll"] > 0
    assert "nll" not in record
    with pytest.raises(KeyError):
        recipes.measure("unknown", 100, "SGD x 1", options)


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 120), ("test", 40)):
        arrays[f"x_{part}"] = generator.integers(0, 255, (count, 32, 32, 3)).astype("uint8")
        arrays[f"y_{part}"] = np.arange(count) % 100
    np.savez(tmp_path / "cifar100.npz", **arrays)
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*They are used anyway")
def test_image_tasks_read_published_files(folder):
    for who, subset in (("fit", 40), ("SGD x 1", None)):
        seed = 3 if subset is None else 100
        options = recipes.Options(epochs=1, settings={"networks": 1}, data=folder, subset=subset, timed=False)
        record = recipes.measure("images-transformer", seed, who, options)
        assert record["val_nll"] > 0
        assert ("nll" in record) == (subset is None)
        assert record.get("subset") == subset
        assert "seconds" not in record
    with pytest.raises(ValueError, match="Give their folder: --data"):
        recipes.measure("images-wide", 3, "fit", recipes.Options())


def test_tasks_on_real_text_and_a_real_table(tmp_path):
    """The text is what follows the first empty line; words that are seldom or new are word 1, and padding is word 0."""
    for part, body in (("train", "the cat sat"), ("test", "the dog sat")):
        for group in ("cats", "dogs"):
            folder = tmp_path / f"20news-bydate-{part}" / group
            folder.mkdir(parents=True)
            for number in range(20):
                (folder / str(number)).write_text(f"Subject: header\n\n{body} {group}")
    train, test = real_tasks.news_words(tmp_path)
    assert (train.inputs > 1).sum(1).tolist() == [4] * 40
    assert (test.inputs[0] == 1).sum() == 1  # the dog of the cats' group was never seen
    assert test.labels.tolist() == [0] * 20 + [1] * 20
    rows = "".join(f"{k % 7}\t{k % 2}\n" for k in range(90))
    (tmp_path / "adult.tsv.gz").write_bytes(gzip.compress(f"age\ttarget\n{rows}".encode()))
    splits = real_tasks.adult(tmp_path, 0)
    assert [len(pair.labels) for pair in splits] == [54, 6, 30]
    columns = torch.cat([splits.train.inputs, splits.val.inputs])
    assert columns.mean().item() == pytest.approx(0, abs=1e-5)
    orders = [torch.cat([y for _, y in real_tasks.Rows(splits.train, shuffle, 16)]) for shuffle in (False, True)]
    assert torch.equal(orders[0], splits.train.labels)
    assert torch.equal(orders[1].sort().values, splits.train.labels.sort().values)


def test_the_faster_of_the_eager_and_the_compiled_rival_counts():
    options = recipes.Options("cuda")
    jobs = list(recipes.missing([], ["images-resnet"], range(3, 4), options))
    assert {job[2]: options.epochs_of(job[0]) for job in jobs} == dict.fromkeys(recipes.GPU_WHO, 15)
    costs = {"fit": (1.0, 9.0, 4.0), "SGD x 1": (1.2, 3.0, 2.0), "AdamW x 1": (1.1, 4.0, 2.0)}
    costs |= {"SGD x 1 compiled": (1.2, 1.0, 3.0), "AdamW x 1 compiled": (1.1, 2.0, 3.0)}
    names = "val_nll", "seconds", "gigabytes"
    shared = {"task": "images-resnet", "seed": 3, "device": "cuda", "method": ""}
    records = [shared | {"who": who} | dict(zip(names, values, strict=True)) for who, values in costs.items()]
    ((_, ((_, rival),)),) = recipes.chosen(records)
    assert (rival["who"], rival["seconds"], rival["gigabytes"]) == ("AdamW x 1", 2.0, 3.0)
    untimed = [{k: v for k, v in r.items() if k != "seconds"} | {"seed": 4} for r in records[:3]]
    (row,) = recipes.summary(records + untimed)
    assert (row["seeds"], round(row["time"], 3)) == (2, 4.5)
    assert "| memory |" in recipes.table(records + untimed)


def test_profile_times_the_steps(monkeypatch, capsys):
    from studies.benchmarks import recipes_profile

    for name, value in (("WARM_UP", 5), ("TIMED", 5), ("COUNTED", 5)):
        monkeypatch.setattr(recipes_profile, name, value)
    printed = call(monkeypatch, capsys, "--tasks", "table", "--epochs", 1, "--profile")
    assert printed.count("ms a step, first") == 3
    assert "looks" in printed


def test_crops_keep_the_pixels_and_the_labels():
    images = torch.arange(1.0, 1 + 6 * 3 * 8 * 8).reshape(6, 3, 8, 8)
    pair = recipe_tasks.Pair(images, torch.arange(6))
    ((plain, labels),) = recipe_tasks.Crops(pair, shuffle=False)
    assert torch.equal(plain, images)
    batches = list(recipe_tasks.Crops(pair, shuffle=True, size=4))
    assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == list(range(6))
    for batch, labels in batches:
        for crop, label in zip(batch, labels, strict=True):
            kept = set(crop[crop != 0].tolist())
            assert len(kept) >= 3 * 16
            assert kept <= set(images[label].flatten().tolist())
