"""Tests of the hooks of outer variables, and of arguments of ``solve``: wrong results and wrong types raise errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.bilevel import (
    CG,
    SGD,
    Bilevel,
    History,
    Implicit,
    LabelSmoothing,
    Neumann,
    Nystrom,
    OneStep,
    OuterVariable,
    Plain,
    Unrolled,
    solve,
)
from calibrant.data import TensorStream
from tests.bilevel.loop_cases import CLASSES, blobs, mlp, problem, run


class Own(OuterVariable):
    """Strengths of the penalties on the network's four parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.full((4,), -3.0))

    def penalty(self, params):
        return (self.raw.exp() * torch.stack([p.square().sum() for p in params.values()])).sum()


class ManyPenalties(Own):
    def penalty(self, params):
        return self.raw.exp() * torch.stack([p.square().sum() for p in params.values()])


class ManyPriors(Own):
    def prior(self):
        return self.raw.square()


class ColumnOfWeights(Own):
    def weigh(self, losses, batch):
        return self.raw[0].sigmoid() * torch.ones_like(losses).unsqueeze(-1) * losses


class ShortProjection(Own):
    def project(self, values):
        return {"raw": values["raw"][:2]}


class NoProjection(Own):
    def project(self, values):
        values["raw"].clamp(max=0)


class NamelessProjection(Own):
    def project(self, values):
        return {}


class ShortStart(Own):
    moves_start = True

    def initial(self, params):
        return params[:3] + self.raw.sum()


HOOKS = {
    ManyPenalties: r"ManyPenalties\.penalty must return one number; got shape \(4,\)",
    ManyPriors: r"ManyPriors\.prior must return one number; got shape \(4,\)",
    ColumnOfWeights: r"ColumnOfWeights\.weigh must return one loss per sample, of shape \(20,\); got shape \(20, 20\)",
    ShortProjection: r"ShortProjection\.project must return all values by name.*\(4,\).*got \{'raw': \(2,\)\}",
    NoProjection: r"NoProjection\.project must return all values by name.*got None",
    NamelessProjection: r"NamelessProjection\.project must return all values by name.*got \{\}",
    ShortStart: r"ShortStart\.initial must return a vector of the network's \d+ parameters; got shape \(3,\)",
}


def test_correct_hooks_are_accepted():
    assert run(problem(outer=Own())).phi.isfinite().all()


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_that_returns_something_else_is_named(kind):
    with pytest.raises(ValueError, match=HOOKS[kind]):
        run(problem(outer=kind()), restart=kind.moves_start)


def test_smoothing_must_be_made_for_the_classes_of_the_network():
    with pytest.raises(ValueError, match=f"for the {CLASSES} classes of the network; got 2"):
        problem(outer=LabelSmoothing(2, per="class"))


def test_losses_and_sample_weights_must_have_one_shape():
    x, y = blobs()
    train = TensorStream(x, y, sample_weight=torch.rand(len(y), dtype=x.dtype))

    def columns(net, outer, batch):
        losses = F.cross_entropy(net(batch.inputs), batch.targets, reduction="none")
        return batch.weighted(losses.unsqueeze(-1)).mean()

    with pytest.raises(ValueError, match=r"one value per sample, of shape \(20,\).*got shape \(20, 1\)"):
        Bilevel(mlp(), train=train, inner_loss=columns)


THEIRS = torch.optim.SGD(mlp().parameters(), 0.1)
ARGUMENTS = {
    "a name of a hypergradient": ({"hypergradient": "unrolled"}, TypeError, "Unrolled"),
    "an optimiser of torch": ({"inner_optimizer": THEIRS}, TypeError, r"inner optimiser.*torch\.optim"),
    "an outer optimiser of torch": ({"outer_optimizer": THEIRS}, TypeError, "outer optimiser"),
    "a list of problems": ({"problem": [1, 2]}, TypeError, r"must be a Bilevel or a Population; got a list"),
    "a callback alone": ({"callbacks": History()}, TypeError, r"callbacks must be a list.*Pass \[callback\]"),
    "a function as callback": ({"callbacks": [print]}, TypeError, r"callbacks must be a list.*Derive a class"),
    "half a step": ({"outer_steps": 2.5}, ValueError, r"outer_steps must be at least 0 and a whole number; got 2\.5"),
    "no number of steps": ({"outer_steps": None}, ValueError, r"outer_steps must be at least 0.*got None"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments_of_solve_are_named(case):
    given, kind, sentence = ARGUMENTS[case]
    usual = {"hypergradient": Unrolled(2), "inner_optimizer": SGD(0.1), "outer_optimizer": SGD(0.1), "outer_steps": 1}
    settings = usual | given
    with pytest.raises(kind, match=sentence):
        solve(settings.pop("problem", None) or problem(), **settings)


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda: Unrolled(2.5), ValueError, r"steps must be at least 1 and a whole number; got 2\.5"),
        (lambda: OneStep(scope="tail"), ValueError, "scope must be 'all' or 'head'; got 'tail'"),
        (lambda: Implicit(2, solve="cg"), TypeError, r"solve must be a linear solver such as CG\(\); got 'cg'"),
        (lambda: Implicit(2, solve=CG), TypeError, r"solve must be a linear solver"),
        (lambda: Implicit(2, damping=-1.0), ValueError, r"damping must be at least 0; got -1\.0"),
        (lambda: Implicit(2, damping="much"), ValueError, "damping must be a number; got 'much'"),
        (lambda: CG(0), ValueError, "steps must be a positive whole number; got 0"),
        (lambda: Neumann(-1), ValueError, "terms must be a positive whole number; got -1"),
        (lambda: Neumann(scale=-0.5), ValueError, r"scale must be positive, or None; got -0\.5"),
        (lambda: Nystrom(0), ValueError, "rank must be a positive whole number; got 0"),
        (lambda: Nystrom(shift=-1.0), ValueError, r"shift must be at least 0; got -1\.0"),
    ],
)
def test_wrong_settings_of_hypergradients_are_named(make, kind, sentence):
    with pytest.raises(kind, match=sentence):
        make()


class Words(nn.Module):
    def __init__(self, **settings) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3, **settings), nn.Linear(6, CLASSES)

    def forward(self, words):
        return self.head(self.embed(words).flatten(1))


def test_embeddings_whose_steps_cannot_be_differentiated_are_named():
    words, labels = torch.randint(0, 5, (12, 2)), torch.randint(0, CLASSES, (12,))
    data = {"train": (words, labels), "val": (words, labels)}
    for outer in (None, LabelSmoothing(CLASSES, per="class")):
        with pytest.raises(ValueError, match=r"'embed' must have max_norm=None; got 1\.0"):
            Bilevel(Words(max_norm=1.0), outer, **data)
    with pytest.raises(ValueError, match="'embed' must have scale_grad_by_freq=False"):
        Bilevel(Words(scale_grad_by_freq=True), LabelSmoothing(CLASSES, per="class"), **data)
    plain = Bilevel(Words(scale_grad_by_freq=True), **data)
    assert solve(plain, hypergradient=Plain(2), inner_optimizer=SGD(0.1), outer_steps=1).params.isfinite().all()
