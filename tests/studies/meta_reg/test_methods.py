"""Every method of the study trains with both recipes: those of the paper, of Table 3, of noisy labels, all variants."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from calibrant.methods.catalogue import IMAGE_METHODS, RECIPES, TABLE_3, with_recipe
from calibrant.methods.core.task import Samples, Task
from calibrant.methods.meta_regularization import gamma_of
from calibrant.models import small_cnn
from studies.meta_reg.plan import FIRST, known_methods, network_of, settings_text, trained
from studies.meta_reg.search import settings

CLASSES, EACH = 3, 24
EVERY = known_methods() | settings()
LISTED = (
    "ce ce-ts focal flsd ls-0.05 ls-0.1 mixup mmce ce-dece ce-sece flg flg-dece flg-sece focal-control recommended "
    "mdca focal-mdca mbls mbls-0 focal-sb-ece focal-sb-avuc ce-clean weights"
)


def images(seed: int) -> Samples:
    """A bright bar whose position gives the class, with noise."""
    labels = torch.arange(EACH) % CLASSES
    pixels = 0.3 * torch.randn(EACH, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    for row, label in enumerate(labels.tolist()):
        pixels[row, 0, :, 2 * label : 2 * label + 2] += 1
    return Samples(pixels, labels)


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(
        images(0), images(1), CLASSES, 0, lambda seed: small_cnn(CLASSES, widths=(8,), seed=seed), meta=images(2)
    )


def test_every_method_of_the_study_is_known() -> None:
    assert set(LISTED.split()) <= EVERY.keys()
    assert set(FIRST) <= set(IMAGE_METHODS)
    assert len({settings_text(EVERY[name]) for name in TABLE_3}) == len(TABLE_3)


@pytest.mark.parametrize(
    ("name", "recipe"), [*((name, "short") for name in EVERY), *((name, "paper") for name in IMAGE_METHODS)]
)
def test_every_method_trains_and_the_papers_with_both_recipes(task: Task, name: str, recipe: str) -> None:
    short = replace(RECIPES[recipe], epochs=2, batch_size=4, learning_rate=0.02)
    fitted = with_recipe(EVERY[name], short).fit(task)
    probs = fitted.probs(task.val.inputs)
    assert probs.shape == (EACH, CLASSES)
    assert bool(torch.isfinite(probs).all())


def test_one_run_serves_the_map_and_its_rivals(task: Task) -> None:
    """Cross-entropy with a moving average, trained alone, is the network of ``recommended`` without its map."""
    recipe = replace(RECIPES["short"], epochs=4, batch_size=4, learning_rate=0.02)
    mapped, averaged, scaled = (with_recipe(EVERY[n], recipe) for n in ("recommended", "ce-average", "ce-average-ts"))
    assert trained(mapped) == trained(averaged) == trained(scaled)
    run = trained(averaged).fit(task)
    inputs = task.val.inputs
    torch.testing.assert_close(network_of(averaged, run).probs(inputs), averaged.fit(task).probs(inputs))
    torch.testing.assert_close(network_of(mapped, run).probs(inputs), mapped.fit(task).probs(inputs))
    torch.testing.assert_close(
        scaled.calibrate(network_of(scaled, run), task).probs(inputs), scaled.fit(task).probs(inputs)
    )


def test_other_methods_have_their_own_runs() -> None:
    runs = {
        name: trained(EVERY[name]) for name in ("ce", "focal", "mixup", "ce-average", "ce-clean", "flg-sece-average")
    }
    assert len(set(map(settings_text, runs.values()))) == len(runs)
    assert trained(EVERY["ce-ts"]) == runs["ce"]


def test_one_gamma_is_moved_by_the_hypergradient_of_flg_sece(task: Task) -> None:
    """``gamma-sece`` differs from ``flg-sece`` in the variable only; its γ is the same for all images, and moves."""
    assert replace(EVERY["gamma-sece"], outer_variable="gamma-net") == EVERY["flg-sece"]
    assert replace(EVERY["flg-sece-one-step"], hypergradient=EVERY["flg-sece"].hypergradient) == EVERY["flg-sece"]
    short = replace(RECIPES["short"], epochs=4, batch_size=4, learning_rate=0.02)
    one, each = (gamma_of(with_recipe(EVERY[name], short).fit(task), task.val) for name in ("gamma-sece", "flg-sece"))
    assert float(one.max() - one.min()) < 1e-6 < float(each.max() - each.min())
    assert abs(float(one[0]) - 1) > 1e-6
