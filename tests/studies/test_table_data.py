"""Tests of folders of tables: which tables are found and usable, and how they are split, encoded and scored."""

import re
from dataclasses import replace

import numpy as np
import pytest

from calibrant import metrics
from studies.common.records import ClassifierOutput
from studies.tables.data import FLOOR, TableFile, examine, find_tables, prepare, score
from tests.studies.cases import UNSUITABLE, write_table


def test_tables_are_found_by_name_and_errors_name_all(folder, tmp_path):
    (folder / "notes.txt").write_text("no table")
    assert list(find_tables(folder)) == ["one", "two"]
    assert list(find_tables(folder, ["two"])) == ["two"]
    with pytest.raises(ValueError, match="among one, two; got three"):
        find_tables(folder, ["three"])
    with pytest.raises(ValueError, match="holds no tables"):
        find_tables(tmp_path / "data" / "..", None)
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        find_tables(tmp_path / "nowhere")
    (folder / "one.tsv").write_text("a\ttarget\n1\t0\n")
    with pytest.raises(ValueError, match=r"one\.csv and one\.tsv"):
        find_tables(folder)


def test_table_names_lose_only_the_endings_of_file_types(tmp_path):
    for name in ("my.table.v2.csv", "my.table.v3.TSV.gz", "my.csv.parquet"):
        (tmp_path / name).touch()
    assert list(find_tables(tmp_path)) == ["my.csv", "my.table.v2", "my.table.v3"]


def test_splits_are_stratified_seeded_and_encoded_by_training_rows(folder):
    split = prepare("two", folder / "two.csv", 0)
    assert (len(split.task.train), len(split.task.val), len(split.labels)) == (90, 30, 30)
    numbers = split.task.train.inputs[:, :2]
    assert numbers.mean(0).numpy() == pytest.approx(0, abs=1e-5)
    assert numbers.std(0, correction=0).numpy() == pytest.approx(1, abs=1e-4)
    share = np.bincount(split.task.train.labels.numpy()) / 90
    assert np.bincount(split.labels) / 30 == pytest.approx(share, abs=0.05)
    x, y = split.pooled()
    assert x.shape == (120, split.inputs.shape[1])
    assert len(y) == 120
    assert not np.array_equal(split.labels, prepare("two", folder / "two.csv", 1).labels)


@pytest.mark.parametrize("name", UNSUITABLE)
def test_an_unusable_table_is_reported_with_its_file(name, tmp_path):
    text, reason = UNSUITABLE[name]
    bad, good = tmp_path / f"{name}.csv", write_table(tmp_path / "good.csv")
    bad.write_text(text)
    found = examine({name: bad, "good": good}, range(2))
    assert (list(found.tables), list(found.unsuitable)) == (["good"], [name])
    assert re.match(reason, found.unsuitable[name])
    with pytest.raises(ValueError, match=f"^{reason}.*No table can be used"):
        examine({name: bad}, range(2))


def test_a_wrong_zero_costs_the_floor_and_is_counted():
    probs = np.array([[1.0, 0.0], [0.2, 0.8]])
    found = ClassifierOutput(probs, probs.argmax(1), probs.max(1))
    scores = score(found, np.array([1, 1]), np.array([False, True]))
    assert scores["clipped"] == 0.5
    assert scores["nll"] == pytest.approx(-(np.log(FLOOR / (1 + FLOOR)) + np.log(0.8)) / 2, rel=1e-5)
    assert scores["accuracy"] == 0.5
    assert scores["brier"] == pytest.approx(metrics.brier(probs, np.array([1, 1])), rel=1e-5)
    assert scores["nll_new"] == pytest.approx(-np.log(0.8), rel=1e-5)
    assert score(found, np.array([1, 1]), np.array([False, False]))["nll_new"] is None


def test_test_rows_with_a_training_copy_are_reported(folder):
    split = prepare("two", folder / "two.csv", 0)
    assert not split.copied().any()
    inputs = split.inputs.clone()
    inputs[2], inputs[5] = split.task.train.inputs[7], split.task.val.inputs[0]
    changed = replace(split, inputs=inputs)
    assert np.flatnonzero(changed.copied()).tolist() == [2, 5]
    probs = np.full((len(inputs), split.task.n_classes), 1 / split.task.n_classes)
    probs[[2, 5]] = np.eye(split.task.n_classes)[split.labels[[2, 5]]]  # known by heart
    record = changed.record("standard", ClassifierOutput(probs, probs.argmax(1), probs.max(1)))
    assert record["copied"] == 2 / len(inputs)
    assert record["nll_new"] == pytest.approx(np.log(split.task.n_classes), rel=1e-5)
    assert record["nll"] < record["nll_new"]


def test_a_single_table_with_labels_in_a_named_column(folder, tmp_path):
    source, path = folder / "two.csv", tmp_path / "own.csv"
    lines = source.read_text().splitlines()
    header = lines[0].split(",")
    named = [{"target": "left?", "class": "left?", "label": "left?", "y": "left?"}.get(n, n) for n in header]
    assert named != header
    path.write_text("\n".join([",".join(named), *lines[1:]]) + "\n")
    assert find_tables(path) == {"own": path}
    own, wanted = prepare("own", TableFile(path, "left?"), 0), prepare("two", source, 0)
    assert np.array_equal(own.labels, wanted.labels)
    found = examine({"own": TableFile(path, "left?"), "other": path}, range(1))
    assert list(found.tables) == ["own"]
    assert "has no column called" in found.unsuitable["other"]
