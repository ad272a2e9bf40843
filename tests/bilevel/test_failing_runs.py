"""Misuse of `solve`, and runs whose values are not finite: errors that say what to do."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.bilevel import (
    SGD,
    Bilevel,
    EarlyStopping,
    History,
    InitialPoint,
    NonFiniteError,
    OneStep,
    OuterVariable,
    Plain,
    SampleWeights,
    Truncated,
    Unrolled,
    composed,
)
from tests.bilevel.loop_cases import SAMPLES, blobs, mlp, problem, run

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
