"""Tests of the second paper's methods by id, on a small network and synthetic images."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from calibrant.bilevel import Callback
from calibrant.methods import Calibrated
from calibrant.methods.averaged import mean_on
from calibrant.methods.catalogue import IMAGE_METHODS, RECIPES, TABLE_3, Recipe, with_recipe
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task
from calibrant.methods.image_networks import NetworkTraining, error, head_and_width
from calibrant.methods.meta_regularization import MetaRegularization, gamma_of
from calibrant.models import small_cnn

CLASSES, EACH = 3, 60
METHODS = IMAGE_METHODS | TABLE_3
RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.05)


def images(seed):
    """A bright bar whose position gives the class, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(EACH) % CLASSES
    pixels = 0.3 * torch.randn(EACH, 1, 8, 8, generator=generator)
    for row, label in enumerate(labels.tolist()):
        pixels[row, 0, :, 2 * label : 2 * label + 2] += 1
    return Samples(pixels, labels)


def make(seed):
    return small_cnn(CLASSES, widths=(8, 8), seed=seed)


@pytest.fixture(scope="module")
def task():
    return Task(images(0), images(1), CLASSES, 0, make, meta=images(2))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_a_network(task, name):
    method = with_recipe(METHODS[name].method, RECIPE)
    fitted = method.fit(task)
    probs = fitted.probs(task.val.inputs)
    assert probs.shape == (EACH, CLASSES)
    torch.testing.assert_close(probs.sum(1), torch.ones(EACH, dtype=probs.dtype), rtol=1e-6, atol=1e-6)
    assert pickle.loads(pickle.dumps(method)) == method
    if isinstance(method, MetaRegularization):
        start = method.problem(make(0), task).initial_phi()
        assert not torch.equal(fitted.networks[0].phi, start)
    if isinstance(method, MetaRegularization) and method.outer_variable.startswith("gamma"):
        gamma = gamma_of(fitted, task.val)
        assert gamma.shape == (EACH,)
        assert bool((gamma >= 0).all())


def test_phi_is_moved_by_the_meta_part_alone(task):
    method = with_recipe(IMAGE_METHODS["flg-sece"].method, RECIPE)
    first = method.fit(task).networks[0].phi
    same = method.fit(replace(task, val=images(7))).networks[0].phi
    other = method.fit(replace(task, meta=images(7))).networks[0].phi
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_without_a_meta_part_the_validation_part_moves_phi(task):
    method = with_recipe(IMAGE_METHODS["recommended"].method, RECIPE)
    a = method.fit(replace(task, meta=None)).networks[0].phi
    b = method.fit(replace(task, meta=task.val)).networks[0].phi
    assert torch.equal(a, b)
    with pytest.raises(ValueError, match="needs a validation part"):
        method.fit(replace(task, meta=None, val=None))


def test_a_method_keeps_its_own_average_under_another_recipe():
    averaged = IMAGE_METHODS["ce-average-ts"].method
    assert isinstance(averaged, Calibrated)
    base = with_recipe(averaged, RECIPES["paper"]).base
    assert isinstance(base, NetworkTraining)
    assert base.recipe == replace(RECIPES["paper"], average=0.98)


def test_the_best_validation_error_is_returned(task):
    recipe = replace(RECIPE, epochs=6, batch_size=15, learning_rate=0.3, select="error", schedule="steps")
    hard = replace(task, val=replace(task.val, inputs=task.val.inputs + torch.randn_like(task.val.inputs)))
    for method in (NetworkTraining(recipe), replace(IMAGE_METHODS["recommended"].method, recipe=recipe)):
        seen = []

        class Watch(Callback):
            def on_step(self, run, seen=seen):
                seen.append(float(mean_on(run, run.state, hard.val, error)))

        fitted = method.fit(hard, callbacks=[Watch()])
        assert len(seen) == 6  # states are compared every four steps, which is an epoch
        assert float(error(fitted.logits(hard.val.inputs), hard.val.labels).mean()) == min(seen)


def test_the_validation_part_not_the_meta_part_chooses_states(task):
    """If all validation labels are wrong, another state is chosen than with the right labels."""
    recipe = replace(RECIPE, epochs=4, batch_size=15, learning_rate=0.1, select="error", schedule="steps")
    method = replace(IMAGE_METHODS["recommended"].method, recipe=recipe)
    wrong = replace(task.val, labels=(task.val.labels + 1) % CLASSES)
    usual, other = (method.fit(replace(task, val=part)).networks[0].params for part in (task.val, wrong))
    assert not torch.equal(usual, other)
    with pytest.raises(ValueError, match="choice of the best state needs a validation part"):
        method.fit(replace(task, val=None))


def test_head_and_width_leave_the_model_alone(task):
    model = make(3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    model.body[1].eval()
    assert head_and_width(model, task) == ("fc", 8)
    assert model.training
    assert not model.body[1].training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_head_and_width_read_no_generator_of_other_devices(task, monkeypatch):
    """Without a list of devices, torch saves the generators of all GPUs, and warns if there are several."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: pytest.fail("a generator of a GPU was read"))
    assert head_and_width(make(3), task) == ("fc", 8)


@pytest.mark.parametrize("positive", ["abs", "sigmoid"])
def test_the_published_network_starts_with_a_mean_gamma_of_one(task, positive):
    method = replace(with_recipe(IMAGE_METHODS["flg-sece-published"].method, RECIPE), positive=positive)
    problem = method.problem(make(0), task)
    batch = problem.train_batch(0)
    features = problem.view.bind(problem.start, problem.start_buffers).features(batch.inputs)
    gamma = problem.outer_view.run(problem.initial_phi(), lambda net: net(features))
    assert gamma.mean().item() == pytest.approx(1, abs=1e-5)
    scale = method.fit(task).networks[0].problem.variables.scale
    assert torch.equal(scale, problem.variables.scale)
    assert (scale != 1) == (positive == "sigmoid")
