"""Tests of outer losses by name: values by hand, equality, populations and traced runs."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant.bilevel import (
    L2,
    OUTER_LOSSES,
    SGD,
    Adam,
    Bilevel,
    LabelNoise,
    LabelSmoothing,
    OuterVariables,
    Population,
    SampleWeights,
    SmoothedWeights,
    Unrolled,
    composed,
    confidence_gap_loss,
    neighbourhood,
    solve,
)
from calibrant.bilevel.problem.objectives import DEFAULT_OUTER_LOSS
from calibrant.data import TensorStream
from calibrant.data.streams.batch import Batch
from calibrant.losses import brier, confidence_bce, cross_entropy, dece, focal, sece
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, mlp

TRAIN = VAL = SAMPLES


def data(seed=0):
    return blobs(seed), blobs(seed + 100)


VALUES = {
    "bce": lambda x, y: confidence_bce(x, y, 30.0).mean(),
    "nll": lambda x, y: cross_entropy(x, y).mean(),
    "brier": lambda x, y: brier(x, y).mean(),
    "sece": lambda x, y: cross_entropy(x, y).mean() + sece(x, y),
    "dece": lambda x, y: cross_entropy(x, y).mean() + dece(x, y),
}


@pytest.mark.parametrize("name", OUTER_LOSSES)
def test_values_by_hand_with_the_prior(name):
    train, val = data()
    outer = SampleWeights(TRAIN, initial_weight=0.4, prior_strength=2.0)
    problem = Bilevel(mlp(), outer, train=train, val=val, outer_loss=OUTER_LOSSES[name]())
    found, _ = problem.outer(problem.view.initial(), {}, problem.initial_phi(), problem.val_batch(0))
    assert found.item() == pytest.approx(VALUES[name](mlp()(val[0]), val[1]).item() + 0.36, rel=1e-7)


@pytest.mark.parametrize("name", OUTER_LOSSES)
def test_sample_weights_of_the_data_count(name):
    """A held-out sample of weight 0 has no effect."""
    train, (x, y) = data()
    weights = torch.ones(VAL, dtype=torch.float64)
    weights[:4] = 0

    def value(val):
        problem = Bilevel(mlp(), train=train, val=val, outer_loss=OUTER_LOSSES[name]())
        return problem.outer(problem.view.initial(), {}, problem.initial_phi(), problem.val_batch(0))[0].item()

    assert value(TensorStream(x, y, sample_weight=weights)) == pytest.approx(value((x[4:], y[4:])), rel=1e-10)


def test_settings_reach_the_error_and_none_leaves_it_alone():
    (x, y), (vx, vy) = data()
    logits = mlp()(vx)
    cases = [
        (OUTER_LOSSES["bce"](alpha=12.0), confidence_bce(logits, vy, 12.0).mean()),
        (OUTER_LOSSES["sece"](strength=None, bandwidth=0.1), sece(logits, vy, bandwidth=0.1)),
        (OUTER_LOSSES["sece"](strength=None, order=2), sece(logits, vy, order=2)),
        (OUTER_LOSSES["dece"](strength=None, bins=7, accuracy="hard"), dece(logits, vy, bins=7, accuracy="hard")),
        (
            OUTER_LOSSES["dece"](strength=0.5, temperature=0.1),
            cross_entropy(logits, vy).mean() + 0.5 * dece(logits, vy, temperature=0.1),
        ),
    ]
    for loss, expected in cases:
        problem = Bilevel(mlp(), train=(x, y), val=(vx, vy), outer_loss=loss)
        found, _ = problem.outer(problem.view.initial(), {}, problem.initial_phi(), problem.val_batch(0))
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_equal_settings_give_equal_losses():
    """Populations compare the losses of their members."""
    assert OUTER_LOSSES["nll"]() == DEFAULT_OUTER_LOSS
    assert OUTER_LOSSES["bce"]() == OUTER_LOSSES["bce"](alpha=30)
    assert OUTER_LOSSES["bce"]() != OUTER_LOSSES["bce"](alpha=31)
    assert OUTER_LOSSES["brier"]() == OUTER_LOSSES["brier"]()
    assert OUTER_LOSSES["sece"](accuracy="soft", strength=1) == OUTER_LOSSES["sece"]()
    assert OUTER_LOSSES["sece"](strength=None) != OUTER_LOSSES["sece"]()
    assert OUTER_LOSSES["dece"](bins=15) == OUTER_LOSSES["dece"]()
    with pytest.raises(ValueError, match=r"strength must be at least 0 and finite, or None for the .* alone; got -1"):
        OUTER_LOSSES["sece"](strength=-1)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("bce", {"alpha": 0.0}, "alpha must be positive and finite; got 0.0"),
        ("sece", {"strength": math.inf}, "strength must be at least 0 and finite, or None"),
        ("sece", {"bandwidth": 0.0}, "bandwidth must be positive and finite; got 0.0"),
        ("sece", {"order": 3}, "order must be 1 or 2; got 3"),
        ("sece", {"accuracy": "both"}, "accuracy must be 'soft' or 'hard'; got 'both'"),
        ("dece", {"accuracy": "both"}, "accuracy must be 'soft' or 'hard'; got 'both'"),
        ("dece", {"bins": 2.5}, "bins must be a positive whole number; got 2.5"),
        ("dece", {"temperature": -1.0}, "temperature must be positive and finite; got -1.0"),
    ],
)
def test_settings_are_checked_when_the_loss_is_made(name, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        OUTER_LOSSES[name](**settings)


class Given:
    """A network with given logits."""

    def __init__(self, logits):
        self.given = logits

    def logits(self, inputs):
        return self.given


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_gap_has_the_precision_of_float32(dtype):
    """In bfloat16 a confidence of 0.998 would be 1, and the gap of right predictions 0."""
    logits = torch.tensor([[6.25, 0.0], [0.0, 6.25], [6.25, 0.0]], dtype=dtype)
    batch = Batch(inputs=None, targets=torch.tensor([0, 1, 1]), sample_weight=torch.tensor([1.0, 1.0, 0.0]))
    found = confidence_gap_loss()(Given(logits), None, batch)
    assert found.item() == pytest.approx(-2 / 3 / (1 + math.exp(6.25)), rel=1e-4)


def test_the_gap_needs_class_indices():
    """Two samples and two classes: class probabilities would be compared with predictions, element by element."""
    batch = Batch(inputs=None, targets=torch.eye(2))
    with pytest.raises(ValueError, match="labels must be one class index"):
        confidence_gap_loss()(Given(torch.eye(2)), None, batch)


SETTINGS = {"hypergradient": Unrolled(4), "inner_optimizer": Adam(0.05), "outer_steps": 4}


def test_members_may_differ_in_alpha():
    train, val = data()

    def member(alpha, through):
        outer = SampleWeights(TRAIN, initial_weight=0.8)
        hyper = {"alpha": torch.tensor(alpha, dtype=torch.float64)} if through == "hyper" else None
        loss = OUTER_LOSSES["bce"]() if through == "hyper" else OUTER_LOSSES["bce"](alpha=alpha)
        return Bilevel(mlp(), outer, train=train, val=val, hyper=hyper, outer_loss=loss)

    together = solve(Population([member(a, "hyper") for a in (5.0, 50.0)]), outer_optimizer=SGD(1.0), **SETTINGS)
    for m, alpha in enumerate((5.0, 50.0)):
        alone = solve(member(alpha, "argument"), outer_optimizer=SGD(1.0), **SETTINGS)
        torch.testing.assert_close(together.phi[m], alone.phi, rtol=1e-9, atol=1e-12)


OUTERS = {
    "noise": lambda: LabelNoise(CLASSES, initial=0.1),
    "noise per class": lambda: LabelNoise(CLASSES, per="class", initial=0.1),
    "noise, per sample": lambda: OuterVariables(LabelNoise(CLASSES, initial=0.1), LabelSmoothing(TRAIN)),
    "smoothed": lambda: SmoothedWeights(TRAIN, initial_weight=0.8, prior_strength=1.0),
    "all at once": lambda: OuterVariables(
        LabelNoise(CLASSES, initial=0.1), SampleWeights(TRAIN, initial_weight=0.8, prior_strength=1.0), L2(mlp())
    ),
}
FOCAL = composed(lambda logits, targets: focal(logits, targets, 1.5))


def member(outer, loss, m, batch_size=None, inner=None):
    train, val = data(m)
    settings = {"outer_loss": OUTER_LOSSES[loss](), "inner_loss": inner, "batch_size": batch_size, "seed": m}
    return Bilevel(
        mlp(m), OUTERS[outer](), train=train, val=val, hyper=neighbourhood(*train, neighbours=4, width=1.0), **settings
    )


ROWS = [(outer, loss, None, None) for outer, loss in zip(OUTERS, VALUES, strict=True)] + [
    ("smoothed", "dece", 7, None),
    ("noise per class", "sece", 7, FOCAL),
    ("noise", "brier", 7, FOCAL),
]


@pytest.mark.parametrize(
    ("outer", "loss", "batch_size", "inner"), ROWS, ids=lambda v: "focal" if v is FOCAL else str(v)
)
def test_traced_populations_equal_eager_single_runs(outer, loss, batch_size, inner):
    """vmap, two derivatives and the tracer at once, in float64."""
    members = [member(outer, loss, m, batch_size, inner) for m in range(2)]
    traced = solve(Population(members), outer_optimizer=SGD(0.5), compile="trace", **SETTINGS)
    for m in range(2):
        alone = solve(member(outer, loss, m, batch_size, inner), outer_optimizer=SGD(0.5), **SETTINGS)
        torch.testing.assert_close(traced.phi[m], alone.phi, rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(traced.params[m], alone.params, rtol=1e-8, atol=1e-11)
        assert (alone.phi - members[m].initial_phi()).abs().max() > 1e-6
