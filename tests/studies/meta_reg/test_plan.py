"""The order of the runs, their keys, and their data."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant.methods.catalogue import IMAGE_METHODS, TABLE_3
from studies.meta_reg import search
from studies.meta_reg.data import prepare
from studies.meta_reg.plan import (
    RECIPES,
    Setup,
    in_order,
    known_methods,
    runs,
    settings_text,
    with_recipe,
)
from studies.report import read_results

RESULTS = Path(__file__).parents[3] / "results"


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
    methods = known_methods() | search.settings()
    present = {settings_text(with_recipe(method, recipe)) for method in methods.values()}
    fields = {name for text in present for name in re.findall(r"(\w+)=", text)}
    stored = stored_texts()
    assert {name for text in stored for name in re.findall(r"(\w+)=", text)} <= fields
    assert len(stored & present) > len(stored) / 2  # the others were run with other values


def test_all_methods_are_known_and_variants_hide_none() -> None:
    assert len(known_methods()) > len(IMAGE_METHODS) + len(TABLE_3)
    for name, entry in (IMAGE_METHODS | TABLE_3).items():
        assert known_methods()[name] == entry.method


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
