"""The table of cases: every optimiser, outer variable and hypergradient of the engine is a row here."""

from __future__ import annotations

import torch
from torch import nn

from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    AdamW,
    Bilevel,
    Forward,
    InitialPoint,
    LabelNoise,
    LabelSmoothing,
    OneStep,
    OuterVariables,
    SampleWeights,
    SmoothedWeights,
    Truncated,
    Unrolled,
    add_prior,
    neighbourhood,
)
from calibrant.bilevel.gradients import hypergradients as hg
from calibrant.bilevel.gradients.dynamics import Dynamics
from calibrant.bilevel.gradients.head import HeadLosses
from calibrant.bilevel.gradients.loss_derivatives import LossDerivatives

TRAIN, VAL, CLASSES = 24, 16, 3

OPTIMIZERS = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": SGD(0.1, momentum=0.9, nesterov=True),
    "schedule": SGD(lambda step: 0.2 / step, momentum=0.5),
    "adam": Adam(0.01),
    "adam, decayed": Adam(0.01, weight_decay=0.01),
    "adamw": AdamW(0.01, weight_decay=0.1),
}


class Scorer(nn.Module):
    """An outer module that is not an OuterVariable: a small network that weighs samples by their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.net(inputs)).squeeze(-1)


def scored_loss(net, outer, batch):  # type: ignore[no-untyped-def]
    losses = nn.functional.cross_entropy(net(batch.inputs), batch.targets, reduction="none")
    return outer(batch.inputs) * losses


def direct_outer_loss(net, outer, batch):  # type: ignore[no-untyped-def]
    """An outer loss with a direct term in φ (the first part of Eq. 8), and the prior that outer variables may have."""
    direct = sum(p.square().sum() for p in outer.parameters())
    return add_prior(nn.functional.cross_entropy(net(batch.inputs), batch.targets) + 0.1 * direct, outer)


def mlp(activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 5), activation(), nn.Linear(5, CLASSES))


OUTERS = {
    "weights, clipped": lambda: SampleWeights(TRAIN, initial_weight=0.7),
    "weights, sigmoid, prior": lambda: SampleWeights(TRAIN, form="sigmoid", initial_weight=0.6, prior_strength=2.0),
    "weights, smoothed": lambda: SmoothedWeights(TRAIN, initial_weight=0.7, prior_strength=0.5),
    "L2 per layer": lambda: L2(mlp(), initial=0.05),
    "L2 per unit": lambda: L2(mlp(), per="unit", initial=0.05),
    "smoothing per sample": lambda: LabelSmoothing(TRAIN, initial=0.1),
    "smoothing per class": lambda: LabelSmoothing(CLASSES, per="class", initial=0.1),
    "noise per class": lambda: LabelNoise(CLASSES, per="class", initial=0.2),
    "initial point": lambda: InitialPoint(mlp()),
    "weights and L2": lambda: OuterVariables(SampleWeights(TRAIN, initial_weight=0.7), L2(mlp(), initial=0.05)),
    "user module": Scorer,
}

HYPERGRADIENTS = {
    "unrolled": Unrolled(6),
    "unrolled, checkpoints": Unrolled(6, memory="checkpoints"),
    "truncated": Truncated(6, 2),
    "forward": Forward(6),
    "one step": OneStep(),
    "one step, descent": OneStep(learning_rate=0.3),
    "one step, head": OneStep(scope="head"),
}


def make_problem(outer: str, *, model: nn.Module | None = None, batch_size: int | None = 9, **kwargs) -> Bilevel:  # type: ignore[no-untyped-def]
    """A small problem in float64 with mini-batches of uneven size."""
    torch.manual_seed(3)
    model = (model or mlp()).double()
    x = torch.randn(TRAIN + VAL, 2, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (TRAIN + VAL,))
    variables = kwargs.pop("variables", None) or OUTERS[outer]()
    if outer == "user module":
        kwargs.setdefault("inner_loss", scored_loss)
    if outer == "weights, smoothed":
        kwargs.setdefault("hyper", neighbourhood(x[:TRAIN], y[:TRAIN], neighbours=5, width=1.0))
    return Bilevel(
        model,
        variables,
        train=(x[:TRAIN], y[:TRAIN]),
        val=(x[TRAIN:], y[TRAIN:]),
        batch_size=batch_size,
        outer_loss=kwargs.pop("outer_loss", direct_outer_loss),
        seed=5,
        **kwargs,
    )


def hypergradient_problem(problem: Bilevel, optimizer, phi: torch.Tensor) -> hg.HypergradientInput:  # type: ignore[no-untyped-def]
    """The input that the solver gives to a hypergradient."""
    names = problem.view.differentiable_buffers
    return hg.HypergradientInput(
        Dynamics(LossDerivatives(problem.inner, names), optimizer),
        LossDerivatives(problem.outer, names),
        problem.train_batch,
        problem.val_batch(0),
        HeadLosses(problem),
        problem.initial_params if problem.moves_start else None,
    )
