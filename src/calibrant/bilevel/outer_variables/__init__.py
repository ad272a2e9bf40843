"""Outer variables φ: what the outer level may move, as modules with one interface.

An outer variable takes part in the inner objective through any of these hooks, each the identity by default; several
variables are chained by :class:`OuterVariables`::

    θ_0      = outer.initial(params)                        the starting point, Φ_0
    t        = outer.targets(labels, batch, classes)        hard labels to soft targets
    z        = outer.outputs(logits, batch)                 the distribution of the observed labels
    losses   = outer.weigh(loss(z, t), batch)               per-sample losses, weighted
    L        = losses.mean() + outer.penalty(params)        whatever is added
    F        = outer loss + outer.prior()                   the outer loss sees the network's own output

``project(values)`` maps the values back into their set after an outer step, and ``quantities(hyper)`` says what φ
stands for. Any ``nn.Module`` may be φ without these hooks when the inner loss is written as a function of it
(:class:`calibrant.bilevel.Bilevel`).
Constants that belong to the data (a neighbourhood, a standardisation) come in through ``batch.hyper``, so that the
members of a population may differ in them.
"""

from calibrant.bilevel.outer_variables.base import OuterVariable, OuterVariables, add_prior
from calibrant.bilevel.outer_variables.gamma_net import ConstantGamma, FocalWithGamma, GammaNet
from calibrant.bilevel.outer_variables.label_noise import LabelNoise
from calibrant.bilevel.outer_variables.label_smoothing import LabelSmoothing
from calibrant.bilevel.outer_variables.logit_map import LogitMap
from calibrant.bilevel.outer_variables.logit_scale import LogitScale
from calibrant.bilevel.outer_variables.neighbours import SmoothedWeights, neighbourhood
from calibrant.bilevel.outer_variables.network_weights import L2, ColumnL2, InitialPoint
from calibrant.bilevel.outer_variables.sample_weights import SampleWeights
from calibrant.bilevel.outer_variables.weight_network import WeightNetwork, standardisation

__all__ = [
    "L2",
    "ColumnL2",
    "ConstantGamma",
    "FocalWithGamma",
    "GammaNet",
    "InitialPoint",
    "LabelNoise",
    "LabelSmoothing",
    "LogitMap",
    "LogitScale",
    "OuterVariable",
    "OuterVariables",
    "SampleWeights",
    "SmoothedWeights",
    "WeightNetwork",
    "add_prior",
    "neighbourhood",
    "standardisation",
]
