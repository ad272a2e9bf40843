"""The bilevel engine: problems, outer variables, optimisers, hypergradients, and one solver for all of them.

>>> import torch
>>> from calibrant.bilevel import SGD, Adam, Bilevel, SampleWeights, Unrolled, solve
>>> x, y = torch.randn(80, 2), torch.randint(0, 2, (80,))
>>> problem = Bilevel(torch.nn.Linear(2, 2), SampleWeights(60), train=(x[:60], y[:60]), val=(x[60:], y[60:]))
>>> optimizers = {"inner_optimizer": Adam(1e-2), "outer_optimizer": SGD(100.0)}
>>> solution = solve(problem, hypergradient=Unrolled(10), outer_steps=3, **optimizers)
>>> solution.outer_quantities()["weights"].shape
torch.Size([60])
"""

from calibrant.bilevel.callbacks import Callback, Checkpoint, EarlyStopping, History, MovingAverage, ProgressBar
from calibrant.bilevel.gradients.hypergradients import (
    Direct,
    Feedback,
    Forward,
    Hypergradient,
    OneStep,
    Plain,
    Truncated,
    Unrolled,
)
from calibrant.bilevel.gradients.implicit import CG, Implicit, Neumann, Nystrom
from calibrant.bilevel.optimizers.base import GroupedOptimizer, Optimizer
from calibrant.bilevel.optimizers.schedules import cosine, multistep, one_cycle
from calibrant.bilevel.optimizers.sgd_and_adam import SGD, Adam, AdamW
from calibrant.bilevel.problem.bilevel import Bilevel
from calibrant.bilevel.problem.evaluation import pooled
from calibrant.bilevel.problem.objectives import OUTER_LOSSES, averaged, composed, confidence_gap_loss
from calibrant.bilevel.problem.population import Population
from calibrant.bilevel.running.finite import NonFiniteError
from calibrant.bilevel.running.run import Run
from calibrant.bilevel.running.solution import Solution
from calibrant.bilevel.running.solver import solve
from calibrant.bilevel.variables.base import OuterVariable, OuterVariables, add_prior
from calibrant.bilevel.variables.gamma import ConstantGamma, FocalWithGamma, GammaNet
from calibrant.bilevel.variables.labels import LabelNoise, LabelSmoothing
from calibrant.bilevel.variables.logits import LogitMap
from calibrant.bilevel.variables.network_weights import L2, ColumnL2, InitialPoint
from calibrant.bilevel.variables.sample_weights import SampleWeights, SmoothedWeights, neighbourhood

__all__ = [
    "CG",
    "L2",
    "OUTER_LOSSES",
    "SGD",
    "Adam",
    "AdamW",
    "Bilevel",
    "Callback",
    "Checkpoint",
    "ColumnL2",
    "ConstantGamma",
    "Direct",
    "EarlyStopping",
    "Feedback",
    "FocalWithGamma",
    "Forward",
    "GammaNet",
    "GroupedOptimizer",
    "History",
    "Hypergradient",
    "Implicit",
    "InitialPoint",
    "LabelNoise",
    "LabelSmoothing",
    "LogitMap",
    "MovingAverage",
    "Neumann",
    "NonFiniteError",
    "Nystrom",
    "OneStep",
    "Optimizer",
    "OuterVariable",
    "OuterVariables",
    "Plain",
    "Population",
    "ProgressBar",
    "Run",
    "SampleWeights",
    "SmoothedWeights",
    "Solution",
    "Truncated",
    "Unrolled",
    "add_prior",
    "averaged",
    "composed",
    "confidence_gap_loss",
    "cosine",
    "multistep",
    "neighbourhood",
    "one_cycle",
    "pooled",
    "solve",
]
