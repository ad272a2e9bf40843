"""Tests of old names: they work for one version with a warning, and the present names do not warn."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import calibrant.bilevel as engine
from calibrant import models
from calibrant.bilevel import (
    SGD,
    Adam,
    AdamW,
    Bilevel,
    Checkpoint,
    GroupedOptimizer,
    OneStep,
    SampleWeights,
    checkpoint,
    solve,
)
from tests.renaming import check_former_name

# Each entry: how to call it by the old name, by the present one, and the value that both must share.
RENAMED = {
    "SGD": (lambda: SGD(lr=0.1), lambda: SGD(learning_rate=0.1), lambda made: made),
    "Adam": (lambda: Adam(lr=0.1, eps=1e-6), lambda: Adam(0.1, eps=1e-6), lambda made: made),
    "AdamW": (lambda: AdamW(lr=0.1), lambda: AdamW(0.1), lambda made: made),
    "OneStep": (lambda: OneStep(lr=0.1), lambda: OneStep(learning_rate=0.1), lambda made: made),
    "attribute": (lambda: SGD(0.1).lr, lambda: SGD(0.1).learning_rate, lambda made: made),
    "attribute of OneStep": (lambda: OneStep(learning_rate=0.1).lr, lambda: 0.1, lambda made: made),
    "cosine": (lambda: engine.cosine(lr=0.1, steps=5), lambda: engine.cosine(0.1, 5), lambda made: made(3)),
    "one_cycle": (lambda: engine.one_cycle(lr=0.1, steps=5), lambda: engine.one_cycle(0.1, 5), lambda made: made(3)),
    "multistep": (lambda: engine.multistep(lr=1.0, milestones=[1]), lambda: engine.multistep(1.0, [1]), lambda f: f(3)),
    "exponential": (
        lambda: engine.exponential(lr=1.0, factor=0.5),
        lambda: engine.exponential(1.0, 0.5),
        lambda f: f(3),
    ),
    "checkpoint.load": (lambda: checkpoint.load, lambda: checkpoint.load_run, lambda made: made),
    "checkpoint.save": (lambda: checkpoint.save, lambda: checkpoint.save_run, lambda made: made),
    "Grouped": (lambda: engine.Grouped, lambda: GroupedOptimizer, lambda made: made),
    "GammaNet": (lambda: engine.GammaNet(4, classes=3), lambda: engine.GammaNet(4, n_classes=3), repr),
    "LabelNoise": (lambda: engine.LabelNoise(classes=3), lambda: engine.LabelNoise(3), lambda made: made.n_classes),
    "LabelNoise.classes": (lambda: engine.LabelNoise(3).classes, lambda: 3, lambda made: made),
    "WeightNetwork": (lambda: engine.WeightNetwork(2, classes=3), lambda: engine.WeightNetwork(2, 3), repr),
    "LogitScale": (
        lambda: engine.LogitScale(per=3),
        lambda: engine.LogitScale(n_classes=3),
        lambda m: m.log_scale.shape,
    ),
    "mlp": (lambda: models.mlp(2, classes=3), lambda: models.mlp(2, n_classes=3), repr),
    "small_cnn": (lambda: models.small_cnn(classes=3), lambda: models.small_cnn(3), repr),
    "resnet18": (lambda: models.resnet18(classes=3), lambda: models.resnet18(3), repr),
    "wide_resnet": (
        lambda: models.wide_resnet(classes=3, depth=10, width=1),
        lambda: models.wide_resnet(3, depth=10, width=1),
        repr,
    ),
}


@pytest.mark.parametrize("name", RENAMED)
def test_old_names_work_with_a_warning(name):
    check_former_name(*RENAMED[name], file=__file__)


def test_both_names_at_once_are_refused():
    with pytest.raises(TypeError, match="both learning_rate and its old name lr"):
        SGD(learning_rate=0.1, lr=0.1)


def test_unknown_names_of_the_engine_are_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = engine.no_such_name


def settings(path):
    return {
        "hypergradient": OneStep(learning_rate=0.1),
        "inner_optimizer": SGD(0.1),
        "outer_optimizer": GroupedOptimizer(parts=((8, SGD(0.5)),)),
        "callbacks": [Checkpoint(path, every=1)],
    }


def test_checkpoints_with_old_names_are_resumed(tmp_path):
    """A file as it was written before the names changed, except for its tensors."""

    def problem():
        torch.manual_seed(0)
        x, y = torch.randn(12, 2), torch.randint(0, 2, (12,))
        return Bilevel(nn.Linear(2, 2), SampleWeights(8), train=(x[:8], y[:8]), val=(x[8:], y[8:]))

    path = tmp_path / "run.safetensors"
    whole = solve(problem(), outer_steps=3, **settings(tmp_path / "other.safetensors"))
    solve(problem(), outer_steps=2, **settings(path))
    with safe_open(str(path), framework="pt") as file:
        new = json.dumps(json.loads(file.metadata()["calibrant"])["run"])
    old = new.replace("learning_rate", "lr").replace("GroupedOptimizer", "Grouped")
    assert old != new
    save_file(load_file(path), path, metadata={"format": "calibrant-run-2", "run": old})
    resumed = solve(problem(), outer_steps=3, resume=path, **settings(path))
    assert torch.equal(resumed.params, whole.params)
    assert torch.equal(resumed.phi, whole.phi)
