"""Tests of outer variables: each hook against its formula, and per-sample variables that follow their sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from calibrant.bilevel import (
    L2,
    Adam,
    Bilevel,
    ColumnL2,
    InitialPoint,
    LabelSmoothing,
    OuterVariable,
    OuterVariables,
    SampleWeights,
    Unrolled,
    solve,
)
from calibrant.data import Batch
from tests.bilevel.variable_cases import CLASSES, TRAIN, filled, linear_model, split

LABELS = torch.arange(TRAIN) % CLASSES
FULL = Batch(torch.zeros(TRAIN, 2), LABELS, slice(None))
MINI = Batch(torch.zeros(4, 2), LABELS[[7, 2, 2, 11]], torch.tensor([7, 2, 2, 11]))
UNKNOWN = Batch(torch.zeros(4, 2), LABELS[:4])
both_batches = pytest.mark.parametrize("batch", [FULL, MINI], ids=["full", "mini"])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(1, 3, 2), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(3, 4), nn.Linear(4, CLASSES))


def test_the_variable_that_does_nothing():
    outer, losses, params = OuterVariable(), torch.rand(4), torch.rand(5)
    assert outer.initial(params) is params
    assert outer.targets(LABELS, UNKNOWN, CLASSES) is LABELS
    assert outer.outputs(params, UNKNOWN) is params
    assert outer.weigh(losses, UNKNOWN) is losses
    assert outer.penalty({}) == 0.0
    assert outer.prior() == 0.0
    assert outer.project({"a": params}) == {"a": params}
    assert list(outer.parameters()) == []


@both_batches
@pytest.mark.parametrize("form", ["clip", "sigmoid"])
def test_weights_multiply_their_samples_losses(form, batch):
    outer = filled(SampleWeights(TRAIN, form=form))
    raw = outer.raw.detach()
    weights = raw if form == "clip" else 1 / (1 + torch.exp(-raw))
    which = range(TRAIN) if batch is FULL else batch.index.tolist()
    losses = torch.rand(len(batch.targets), dtype=torch.float64)
    found = outer.weigh(losses, batch)
    expected = [float(loss) * float(weights[i]) for loss, i in zip(losses, which, strict=True)]
    assert found.tolist() == pytest.approx(expected, rel=1e-14)
    assert torch.allclose(outer.weights(), weights)


def test_clipped_weights_are_projected_and_others_are_not():
    values = {"raw": torch.tensor([-0.5, 0.0, 0.3, 1.0, 7.0])}
    assert SampleWeights(5).project(values)["raw"].tolist() == pytest.approx([0.0, 0.0, 0.3, 1.0, 1.0])
    assert values["raw"].tolist() == pytest.approx([-0.5, 0.0, 0.3, 1.0, 7.0])
    assert SampleWeights(5, form="sigmoid").project(values) is values


@pytest.mark.parametrize(("form", "weight"), [("clip", 0.0), ("clip", 0.4), ("clip", 1.0), ("sigmoid", 0.4)])
def test_weights_start_at_the_given_value(form, weight):
    assert SampleWeights(3, form=form, initial_weight=weight).weights().tolist() == pytest.approx([weight] * 3)
    assert SampleWeights(3).weights().tolist() == [1.0] * 3
    assert SampleWeights(3, form="sigmoid").weights().tolist() == pytest.approx([0.9] * 3)


MATRICES = {"0.weight": 3, "3.weight": 4, "4.weight": CLASSES}  # their units; biases and BatchNorm are left out


@pytest.mark.parametrize("per", ["layer", "unit", "model"])
def test_l2_by_hand(per):
    model = network().double()
    outer = filled(L2(model, per=per))
    expected = {"layer": len(MATRICES), "unit": sum(MATRICES.values()), "model": 1}[per]
    assert outer.log.shape == outer.coefficients().shape == (expected,)
    params = {k: p.detach() for k, p in model.named_parameters()}
    strengths, total = iter(outer.log.exp().tolist()), 0.0
    for name, units in MATRICES.items():
        for unit in range(units):
            if per == "unit" or (per == "layer" and unit == 0) or (per == "model" and total == 0.0):
                strength = next(strengths)
            total += 0.5 * strength * float(params[name][unit].square().sum())
    assert outer.penalty(params).item() == pytest.approx(total, rel=1e-13)


def test_l2_starts_at_the_given_value_and_skips_frozen_parts():
    model = network()
    assert L2(model, initial=0.02).coefficients().tolist() == pytest.approx([0.02] * 3)
    model[3].requires_grad_(False)
    assert L2(model).names == ["0.weight", "4.weight"]


@pytest.mark.parametrize("per", ["layer", "unit", "model"])
def test_l2_of_a_model_without_matrices_is_zero(per):
    model = nn.BatchNorm1d(3)
    assert (
        torch.as_tensor(L2(model, per=per).penalty({k: p.detach() for k, p in model.named_parameters()})).item() == 0.0
    )


@both_batches
@pytest.mark.parametrize("largest", [1.0, 0.3])
@pytest.mark.parametrize("per", ["sample", "class"])
def test_smoothing_by_hand(per, largest, batch):
    """(1 − ε)·onehot + ε/C; per class, ε is that of the sample's label."""
    outer = filled(LabelSmoothing(TRAIN if per == "sample" else CLASSES, per=per, initial=0.1, largest=largest))
    epsilon = [largest / (1 + math.exp(-raw)) for raw in outer.raw.tolist()]
    which = range(TRAIN) if batch is FULL else batch.index.tolist()
    found = outer.targets(batch.targets, batch, CLASSES)
    for row, sample, label in zip(found.tolist(), which, batch.targets.tolist(), strict=True):
        e = epsilon[sample] if per == "sample" else epsilon[label]
        assert row == pytest.approx([(1 - e) * (c == label) + e / CLASSES for c in range(CLASSES)], rel=1e-12)
    assert found.sum(1).tolist() == pytest.approx([1.0] * len(batch.targets))
    assert found.dtype == torch.float64


def test_smoothing_starts_at_the_given_value():
    assert LabelSmoothing(3, initial=0.02, largest=0.3).smoothing().tolist() == pytest.approx([0.02] * 3)


def test_smoothing_per_sample_smooths_soft_targets_too():
    soft = torch.softmax(torch.randn(TRAIN, CLASSES, dtype=torch.float64), 1)
    outer = filled(LabelSmoothing(TRAIN))
    e = outer.smoothing()[:, None]
    found = outer.targets(soft, Batch(FULL.inputs, soft, slice(None)), CLASSES)
    assert torch.allclose(found, (1 - e) * soft + e / CLASSES)


def test_the_initial_point_is_the_models_own():
    model = network().double()
    outer = InitialPoint(model)
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(outer.point, own)
    assert outer.moves_start
    assert outer.initial(torch.zeros_like(own)) is outer.point


class Doubled(OuterVariable):
    """Each hook doubles or adds, to show the order in which a chain applies them."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([shift]))

    def initial(self, params):
        return 2 * params + self.shift

    def targets(self, labels, batch, classes):
        return 2 * labels + self.shift

    def outputs(self, logits, batch):
        return 2 * logits + self.shift

    def weigh(self, losses, batch):
        return 2 * losses + self.shift

    def penalty(self, params):
        return self.shift

    def prior(self):
        return 3 * self.shift

    def project(self, values):
        return {"shift": values["shift"].clamp(max=3.0)}


def test_a_chain_applies_its_parts_in_order():
    chain, start = OuterVariables(Doubled(1.0), Doubled(5.0)), torch.tensor([10.0])
    by_hand = 2 * (2 * 10.0 + 1) + 5
    assert chain.initial(start).item() == by_hand
    assert chain.targets(start, UNKNOWN, CLASSES).item() == by_hand
    assert chain.weigh(start, UNKNOWN).item() == by_hand
    assert chain.outputs(start, UNKNOWN).item() == by_hand
    assert chain.penalty({}).item() == 6.0
    assert chain.prior().item() == 18.0


def test_a_chain_projects_each_part_by_its_own_rule():
    chain = OuterVariables(
        SampleWeights(2), Doubled(0.0), OuterVariables(SampleWeights(2, form="sigmoid"), SampleWeights(2))
    )
    names = ["parts.0.raw", "parts.1.shift", "parts.2.parts.0.raw", "parts.2.parts.1.raw"]
    assert [k for k, _ in chain.named_parameters()] == names
    wild = torch.tensor([-2.0, 9.0])
    found = chain.project(dict.fromkeys(names, wild))
    expected = [[0.0, 1.0], [-2.0, 3.0], [-2.0, 9.0], [0.0, 1.0]]
    assert [found[k].tolist() for k in names] == expected


def test_a_chain_leaves_frozen_parts_out():
    """Frozen weights are not among the values to project, and do not change."""
    weights = SampleWeights(TRAIN, initial_weight=0.5)
    weights.raw.requires_grad_(False)
    problem = Bilevel(nn.Linear(2, CLASSES), OuterVariables(weights, L2(nn.Linear(2, CLASSES))), train=split()[0])
    assert problem.outer_view.names == ["parts.1.log"]
    assert torch.equal(problem.project(torch.tensor([5.0])), torch.tensor([5.0]))


def test_a_chain_needs_what_its_parts_need():
    per_class = LabelSmoothing(CLASSES, per="class")
    assert not OuterVariables().needs_index
    assert not OuterVariables(per_class).needs_index
    assert OuterVariables(per_class, SampleWeights(3)).needs_index
    assert OuterVariables(per_class, LabelSmoothing(3)).needs_index
    assert not OuterVariables(per_class).moves_start
    assert OuterVariables(per_class, InitialPoint(network())).moves_start


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SampleWeights(3, form="relu"), "form must be 'clip' or 'sigmoid'; got 'relu'"),
        (lambda: SampleWeights(3, initial_weight=1.1), "form='clip'; got 1.1"),
        (lambda: SampleWeights(3, initial_weight=float("nan")), "form='clip'; got nan"),
        (lambda: SampleWeights(3, form="sigmoid", initial_weight=1.0), "form='sigmoid'; got 1.0"),
        (lambda: L2(network(), per="bias"), "per must be 'layer', 'unit' or 'model'; got 'bias'"),
        (lambda: L2(network(), initial=0.0), "initial must be positive; got 0.0"),
        (lambda: LabelSmoothing(3, per="batch"), "per must be 'sample' or 'class'; got 'batch'"),
        (lambda: LabelSmoothing(3, initial=0.0), "0 < initial < largest <= 1; got initial=0.0"),
        (lambda: LabelSmoothing(3, initial=0.3, largest=0.2), "got initial=0.3, largest=0.2"),
        (lambda: LabelSmoothing(3, largest=1.5), "largest=1.5"),
        (lambda: OuterVariables(nn.Linear(2, 2)), "must be OuterVariables; got a Linear"),
        (lambda: SampleWeights(TRAIN).weigh(torch.ones(4), UNKNOWN), "the batches do not say which samples they hold"),
        (lambda: LabelSmoothing(TRAIN).targets(LABELS[:4], UNKNOWN, CLASSES), "one entry per training sample"),
        (
            lambda: SampleWeights(TRAIN + 1).weigh(torch.ones(TRAIN), FULL),
            "SampleWeights must be made for the 12 samples of the training set; got 13",
        ),
        (lambda: SampleWeights(1).weigh(torch.ones(TRAIN), FULL), "12 samples of the training set; got 1 samples"),
        (lambda: LabelSmoothing(5).targets(LABELS, FULL, CLASSES), "12 samples of the training set; got 5 samples"),
        (
            lambda: LabelSmoothing(CLASSES, per="class").targets(LABELS, Batch(0, torch.ones(TRAIN, 3)), CLASSES),
            r"must be class indices .*; got shape \(12, 3\)",
        ),
    ],
)
def test_errors_say_what_is_wrong(make, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        make()


def test_the_usual_inner_loss_by_hand():
    """mean_i w_i·CE(smoothed targets) + L2, with all hooks."""
    model, ((x, y), _) = linear_model(), split()
    x = x.double()
    weights, smoothing, l2 = (filled(v) for v in (SampleWeights(TRAIN), LabelSmoothing(TRAIN), L2(model, per="layer")))
    problem = Bilevel(model, OuterVariables(weights, smoothing, l2), train=(x, y))
    found, _ = problem.inner(problem.view.initial(), {}, problem.initial_phi(), problem.train_batch(0))
    e = smoothing.smoothing()[:, None]
    targets = (1 - e) * one_hot(y, CLASSES) + e / CLASSES
    losses = -(targets * model(x).log_softmax(1)).sum(1)
    squares = [model[k].weight.square().sum() for k in (0, 2)]
    by_hand = (weights.weights() * losses).mean() + 0.5 * sum(
        s * q for s, q in zip(l2.coefficients(), squares, strict=True)
    )
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-13)


def test_with_factors_of_one_it_is_the_penalty_per_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    params = dict(model.named_parameters())
    columns = {"0.weight": torch.arange(3)}
    own, plain = ColumnL2(model, columns, initial=0.3), L2(model, initial=0.3)
    torch.testing.assert_close(own.penalty(params), plain.penalty(params))
    with torch.no_grad():
        own.relative[0][1] = np.log(5.0)
    more = 0.5 * 0.3 * 4 * params["0.weight"][:, 1].square().sum()
    torch.testing.assert_close(own.penalty(params), plain.penalty(params) + more)


def test_groups_share_a_factor_and_layers_start_as_given() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    own = ColumnL2(model, {"0.weight": torch.tensor([0, 0, 1, 1])}, initial={"0.weight": 0.2}, shrink=0.5)
    assert own.relative[0].shape == (2,)
    np.testing.assert_allclose(own.coefficients().detach(), [0.2])
    with torch.no_grad():
        own.relative[0].fill_(2.0)
    assert float(torch.as_tensor(own.prior()).detach()) == pytest.approx(0.5 * 8)


def test_columns_that_do_not_help_are_penalised_more() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=generator, dtype=torch.float64)
    labels = (x[:, 0] + 0.3 * torch.randn(120, generator=generator) > 0).long()
    model = nn.Sequential(nn.Linear(4, 2)).double()
    outer = ColumnL2(model, {"0.weight": torch.arange(4)}, initial=0.01).double()
    problem = Bilevel(model, outer, train=(x[:30], labels[:30]), val=(x[30:], labels[30:]))
    found = solve(
        problem, hypergradient=Unrolled(30), inner_optimizer=Adam(0.1), outer_optimizer=Adam(0.2), outer_steps=15
    )
    relative = found.outer_variables()["relative.0"]
    assert relative[0] < relative[1:].min()


def test_unknown_matrices_and_negative_shrinkage_are_errors() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"got 1\.weight"):
        ColumnL2(model, {"1.weight": torch.arange(4)})
    with pytest.raises(ValueError, match="shrink must be at least 0"):
        ColumnL2(model, {"0.weight": torch.arange(4)}, shrink=-1.0)
