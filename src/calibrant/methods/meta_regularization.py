"""The methods of the second paper: a focal γ or L2 strengths, learned from the calibration of held-out data.

"Towards Unbiased Calibration using Meta-Regularization": γ-Net computes a focal γ for each sample, Eq. (3) and Eq. (4).
SECE, Eq. (7), evaluates it. The paper differentiates through one training step. This is short-sighted: one more step of
plain cross-entropy always lowers the held-out loss of the next step, so γ goes to 0. The default here treats the last
layer as solved to optimality instead.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from calibrant import bilevel
from calibrant.base.settings import check_choice
from calibrant.bilevel.gradients.loss_derivatives import seeded
from calibrant.bilevel.problem.objectives import UserLoss
from calibrant.data.streams.batch import map_tensors
from calibrant.methods.core.results import Fitted
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task
from calibrant.methods.image_networks import STRIDE, HeldOutTraining, head_and_width

SOLVED = bilevel.Implicit(STRIDE, "head")
Variable = Literal["gamma-net", "gamma", "l2-units"]


@dataclass(frozen=True)
class MetaRegularization(HeldOutTraining):
    """Training with regularisation learned from held-out data (Sections 3.3 and 4.3 of the second paper).

    Parameters
    ----------
    outer_variable : {"gamma-net", "gamma", "l2-units"}
        φ: a γ for each sample (γ-Net); one γ for all; or one L2 strength per unit of the head (Bohdal et al. 2021). The
        weight decay of SGD is always kept.
    outer_loss : str
        A name in :data:`calibrant.bilevel.OUTER_LOSSES`.
    outer_settings : tuple of (name, value)
        Settings of the outer loss. The default is for "sece"; use () for the settings of another loss as they are.
    hypergradient : Hypergradient
        How dF/dφ is computed. By default the head is treated as solved.
    outer_learning_rate : float
        Adam's learning rate for φ.
    outer_batch_size : int
        Held-out samples per outer step.
    start : float
        The share of the run after which φ is updated.
    form : {"bounded", "published"}
        The form of γ-Net.
    positive : str
        How the published γ-Net keeps γ positive.
    initial, largest : float
        The initial γ, and its upper bound in the bounded form.
    temperature : float
        τ of the published γ-Net.
    rescaled : bool
        Keep the mean size of cross-entropy's gradient for every γ (:class:`calibrant.bilevel.FocalWithGamma`).
    body_share : float
        The share of the focal loss in the loss that trains the layers before the head; the rest is cross-entropy. With
        0, γ acts on the head only.
    """

    outer_variable: Variable = "gamma-net"
    outer_loss: str = "sece"
    outer_settings: tuple[tuple[str, Any], ...] = (("strength", 10.0), ("order", 2), ("bandwidth", 0.02))
    held_out_for: ClassVar[str] = "Regularisation learned from held-out data"
    hypergradient: bilevel.Hypergradient = SOLVED
    outer_learning_rate: float = 0.02
    outer_batch_size: int = 1024
    start: float = 0.0
    form: Literal["bounded", "published"] = "bounded"
    positive: Literal["abs", "min-max", "sigmoid", "relu", "softplus"] = "abs"
    initial: float = 1.0
    largest: float = field(default=5.0, repr=False)
    temperature: float = field(default=0.01, repr=False)
    rescaled: bool = field(default=False, repr=False)
    body_share: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        check_choice("outer_variable", self.outer_variable, get_args(Variable))
        check_choice("outer_loss", self.outer_loss, bilevel.OUTER_LOSSES)
        names = [name for name, _ in self.outer_settings]
        valid = inspect.signature(bilevel.OUTER_LOSSES[self.outer_loss]).parameters
        if not valid.keys() >= set(names):
            raise ValueError(
                f"outer_settings must be settings of the outer loss {self.outer_loss!r} "
                f"({', '.join(valid) or 'none'}); got {', '.join(names)}."
            )
        super().__post_init__()

    def variable(self, model: nn.Module, task: Task) -> bilevel.OuterVariable:
        if self.outer_variable == "gamma":
            return bilevel.ConstantGamma(self.initial, largest=self.largest)
        name, width = head_and_width(model, task)
        if self.outer_variable == "l2-units":
            return bilevel.L2(model, per="unit", only=name)
        names = ("form", "positive", "temperature", "initial", "largest")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        return bilevel.GammaNet(width, task.n_classes, **settings, seed=task.seed)

    def inner_loss(self) -> UserLoss:
        """The training loss: the focal loss with γ from φ (Eq. (2)), or cross-entropy with the penalty from φ."""
        if self.outer_variable == "l2-units":
            return super().inner_loss()
        return bilevel.FocalWithGamma(self.rescaled, self.body_share)

    def objective(self) -> UserLoss:
        return bilevel.OUTER_LOSSES[self.outer_loss](**dict(self.outer_settings))

    def problem(self, model: nn.Module, task: Task) -> bilevel.Bilevel:
        problem = super().problem(model, task)
        if self.form == "published" and self.outer_variable == "gamma-net":
            rescale(problem)
        return problem


@dataclass(frozen=True)
class FocalControl(MetaRegularization):
    """One focal γ controlled by the held-out gap between confidence and accuracy, without a gradient.

    Every few steps ``γ ← clip(γ + gain·gap, 0, largest)``, where the gap is a moving average with decay 0.8. This is a
    simple alternative to a learned γ.
    """

    outer_variable: Variable = "gamma"
    hypergradient: bilevel.Hypergradient = field(default=bilevel.Feedback(STRIDE))
    gain: float = 1.0

    def objective(self) -> UserLoss:
        return bilevel.confidence_gap_loss()

    def outer_optimizer(self) -> bilevel.Optimizer:
        return bilevel.SGD(0.2 * self.gain, momentum=0.8)  # a moving average of the gap with weight 0.8, times the gain


def rescale(problem: bilevel.Bilevel) -> None:
    """Scale a published γ-Net so that the mean γ is 1 on the features of the first batch, as in the paper."""
    net, batch = problem.variables, problem.train_batch(0)
    assert isinstance(net, bilevel.GammaNet)
    with torch.no_grad(), seeded(batch.seed, problem.start):
        network = problem.view.bind(problem.start, problem.start_buffers, noise=batch.noise, autocast=problem.autocast)
        net.rescale(network.features(batch.inputs))
    problem.start_phi = problem.outer_view.initial()


def gamma_of(fitted: Fitted, part: Samples) -> Tensor:
    """The γ of each sample of a part, from a trained γ-Net or a single γ, on the CPU."""
    (solution,) = fitted.networks
    problem = solution.problem
    net = problem.view.bind(solution.params, solution.buffers, train=False, autocast=problem.autocast)
    device = solution.params.device
    with torch.no_grad():
        features = torch.cat([net.features(map_tensors(lambda t: t.to(device), x)) for x, _ in part.pieces()])
        return problem.outer_view.run(solution.phi, lambda outer: outer(features)).cpu()
