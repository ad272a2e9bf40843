"""Errors that say what to do: misuse, hooks that return something else, and values that are not finite."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.bilevel import (
    CG,
    SGD,
    Bilevel,
    EarlyStopping,
    History,
    Implicit,
    InitialPoint,
    LabelSmoothing,
    Neumann,
    NonFiniteError,
    Nystrom,
    OneStep,
    OuterVariable,
    Plain,
    SampleWeights,
    Truncated,
    Unrolled,
    composed,
    solve,
)
from calibrant.data import TensorStream
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, mlp, problem, run


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


MISUSES = {
    "no outer variables": (lambda: run(Bilevel(mlp(), train=blobs(), val=blobs())), "no outer variables"),
    "no validation data": (lambda: run(problem(val=None)), "needs validation data"),
    "no outer optimiser": (lambda: run(problem(), outer_optimizer=None), "outer_optimizer must be given"),
    "initial point, carried over": (lambda: run(problem(outer=InitialPoint(mlp()))), "restart must be True"),
    "initial point out of sight of a window": (
        lambda: run(problem(outer=InitialPoint(mlp())), hypergradient=Truncated(4, 2), restart=True),
        r"Truncated\(.*does not differentiate through the starting point",
    ),
    "initial point out of sight of a look-ahead": (
        lambda: run(problem(outer=InitialPoint(mlp())), hypergradient=OneStep(), restart=True),
        "does not differentiate through the starting point",
    ),
    "steps per member of one problem": (lambda: run(problem(), outer_steps=torch.tensor([3])), "one per member"),
    "negative steps": (lambda: run(problem(), outer_steps=-1), "outer_steps must be at least 0"),
    "rates per member of one problem": (
        lambda: run(problem(), inner_optimizer=SGD(torch.tensor([0.1, 0.2]))),
        "inner learning rate",
    ),
    "clip_norm of zero": (lambda: run(problem(), clip_norm=0.0), "clip_norm must be positive"),
    "unknown compiler": (lambda: run(problem(), compile="fast"), "'trace' or 'inductor'"),
    "module without a loss": (lambda: problem(outer=nn.Linear(2, 1)), "inner_loss must be given"),
    "inner loss of wrong shape": (
        lambda: problem(inner_loss=lambda net, outer, batch: net(batch.inputs)),
        r"inner loss must be one value.*\(20, 3\)",
    ),
    "inner loss that is a float": (lambda: problem(inner_loss=lambda net, outer, batch: 1.0), "inner loss.*float"),
    "outer loss of wrong shape": (
        lambda: run(problem(outer_loss=lambda net, outer, batch: net(batch.inputs))),
        "outer loss must be one value",
    ),
    "outer loss of nothing": (
        lambda: run(problem(outer_loss=lambda net, outer, batch: batch.inputs.mean())),
        "must depend on the network or on the outer variables",
    ),
    "weights of a reduced loss": (
        lambda: problem(inner_loss=composed(F.cross_entropy)),
        "SampleWeights needs one loss per sample",
    ),
    "early stopping at no step": (lambda: EarlyStopping(every=0), "every must be at least 1"),
    "outer variables at no step": (lambda: History(phi_every=0), "phi_every must be at least 1"),
    "nothing to train": (lambda: problem(mlp().requires_grad_(False)), "must have trainable parameters"),
    "rows that do not match": (lambda: problem(train=(blobs()[0], blobs()[1][:5])), "the same samples"),
    "last beyond steps": (lambda: Truncated(3, 4), "between 1 and steps=3"),
    "unknown memory": (lambda: Unrolled(3, memory="all"), "memory must be"),
    "no steps": (lambda: Plain(0), "steps must be at least 1"),
    "member of one problem": (lambda: run(problem(), outer_steps=0).member(0), "solution of a Population"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_misuse_is_answered_by_a_sentence(case):
    misuse, sentence = MISUSES[case]
    with pytest.raises(ValueError, match=sentence):
        misuse()


def test_an_exploding_inner_loss_names_step_and_level():
    x, y = blobs(dtype=torch.float32)
    case = Bilevel(mlp(dtype=torch.float32), SampleWeights(SAMPLES), train=(x, y), val=(x, y))
    with pytest.raises(NonFiniteError, match=r"inner.*outer step \d+.*smaller inner learning rate"):
        run(case, inner_optimizer=SGD(1e38, momentum=0.9), outer_steps=50)
    history = History()
    x[3] = float("nan")
    case = problem(mlp(dtype=torch.float32), train=(x, y), batch_size=1)
    with pytest.raises(NonFiniteError, match=r"inner loss.*inner step (\d+) \(outer step (\d+)\)") as error:
        run(case, callbacks=[history], outer_steps=50)
    inner, outer = (int(number) for number in re.findall(r"step (\d+)", str(error.value)))
    bad = next(k for k in range(50) if int(case.train_batch(k).index) == 3)
    assert inner == bad + 1
    assert outer == math.ceil(inner / 4) == len(history["inner_loss"]) + 1


@pytest.mark.parametrize(
    "hypergradient", [Unrolled(3), Truncated(3, 1), OneStep(3)], ids=["unrolled", "truncated", "one step"]
)
def test_bad_validation_data_is_blamed_on_the_outer_level(hypergradient):
    x, y = blobs(100)
    x[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"outer loss was not finite at outer step 1.*validation"):
        run(problem(val=(x, y)), hypergradient=hypergradient)


@pytest.mark.parametrize("hypergradient", [Plain(1), OneStep(1, learning_rate=0.1)], ids=["plain", "one step"])
def test_parameters_that_overflow_in_the_last_step_are_not_returned(hypergradient):
    with pytest.raises(NonFiniteError, match=r"inner parameter vector.*outer step 1.*smaller inner learning rate"):
        run(problem(), hypergradient=hypergradient, inner_optimizer=SGD(lambda step: float("inf")), outer_steps=1)


def test_outer_variables_that_overflow_are_not_returned():
    class Free(OuterVariable):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(SAMPLES))

        def weigh(self, losses, batch):
            return losses * self.w

    with pytest.raises(NonFiniteError, match=r"outer variables.*smaller outer learning rate"):
        run(problem(outer=Free()), outer_optimizer=SGD(lambda step: float("inf")), outer_steps=1)
