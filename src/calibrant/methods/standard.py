"""Standard training, and methods built from it: several networks, a calibrator after training, and cross-fitting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel import Adam, Bilevel, EarlyStopping, NonFiniteError, Plain, composed
from calibrant.bilevel.problem.objectives import UserLoss
from calibrant.data.streams.streams import mix
from calibrant.losses.table import focal_loss, label_smoothing_loss
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.confidence import check_calibrator, recalibrated
from calibrant.methods.core.method import Method, SolveSettings, TrainingGroup
from calibrant.methods.core.results import Failed, Fitted, Mixture, begun, held_out_logits, network_logits
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task, streams
from calibrant.methods.crossfit.crossfit import CrossFit, calibrated_mean, fold_tasks
from calibrant.methods.crossfit.folds import grouped

CHECK_EVERY = 5
"""Steps between two evaluations of the validation loss."""


@dataclass(frozen=True)
class Standard(Method):
    """One network trained with one loss and Adam: "the standard training procedure" of the first paper.

    Parameters
    ----------
    hidden : tuple of int
        Units of the hidden layers, for the default network.
    activation : {"relu", "silu", "tanh"}
        Activation of the hidden units.
    epochs : int, optional
        Passes over the training data; None: 1,200 steps or 20 epochs, whichever is more.
    learning_rate : float
        Adam's learning rate.
    batch_size : int, optional
        Samples per step; None: all rows if there are at most 4,096, else 512.
    patience : int, optional
        Stop if the validation loss has not improved for this many steps, and restore the best state. With the full
        batch, a step is an epoch. With mini-batches or a loader, patience is at least five epochs. None: train to the
        end.
    best : bool
        Train to the end, and restore the state with the best validation loss, which is computed once per epoch.
    smoothing : float
        ε of label smoothing; 0: none.
    gamma : float
        γ of the focal loss; 0: cross-entropy.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    epochs: int | None = 1200
    learning_rate: float = 0.02
    batch_size: int | None = None
    patience: int | None = None
    smoothing: float = 0.0
    gamma: float = 0.0
    best: bool = False

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate", "epochs"})

    def __post_init__(self) -> None:
        if self.best and self.patience is not None:
            raise ValueError(f"patience must be None with best=True, which trains to the end; got {self.patience}.")
        if self.smoothing and self.gamma:
            raise ValueError(
                f"smoothing and gamma must not both be set; got smoothing={self.smoothing} and gamma={self.gamma}. "
                "Set one of them to 0."
            )

    def data(self, task: Task) -> dict[str, Any]:
        judged = self.best or self.patience is not None
        if judged:
            task.need_val("Early stopping (patience)" if self.patience else "The best state (best)")
        return streams(task, self.batch_size, val=judged)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return Bilevel(model, **self.data(task), inner_loss=self.inner_loss(), seed=task.seed)

    def solving(self, group: TrainingGroup) -> SolveSettings:
        return SolveSettings(
            hypergradient=Plain(CHECK_EVERY),
            inner_optimizer=Adam(group.each("learning_rate")),
            steps=group.steps(),
            callbacks=self.stopping(group.problems[0].train.batches),
        )

    def inner_loss(self) -> UserLoss:
        """The training loss, with hooks for outer variables."""
        if self.smoothing:
            return composed(label_smoothing_loss(epsilon=self.smoothing))
        return composed(focal_loss(gamma=self.gamma)) if self.gamma else composed()

    def stopping(self, per_epoch: int) -> list[EarlyStopping]:
        """Callbacks that restore the state with the best validation loss. An epoch has ``per_epoch`` steps."""
        if self.best:
            return [EarlyStopping(patience=None, every=max(1, per_epoch // CHECK_EVERY))]
        if self.patience is None:
            return []
        steps = self.patience if per_epoch == 1 else max(self.patience, 5 * per_epoch)
        return [EarlyStopping(patience=-(-steps // CHECK_EVERY))]


_STANDARD = Standard()
STOPPED = Standard(patience=200)
"""Standard training that restores the state with the best validation loss: the base of the stopped baselines."""


@dataclass(frozen=True)
class Ensemble(Method):
    """The mean of several networks with different initial parameters (Lakshminarayanan et al. 2017).

    ``base`` is any method that trains one network.
    """

    base: Method = STOPPED
    members: int = 5

    def rows_at_once(self, task: Task) -> int:
        return self.members * self.base.rows_at_once(task)

    @classmethod
    def fit_group(cls, methods: Sequence[Ensemble], tasks: Sequence[Task], **how: Any) -> list[Fitted]:
        base, members = methods[0].base, methods[0].members
        again = [task.again(mix(task.seed, k) % 2**31) for task in tasks for k in range(members)]
        trained = base.fit_group([base] * len(again), again, **how)
        mixtures: list[Fitted] = []
        for group in (trained[k : k + members] for k in range(0, len(trained), members)):
            networks = begun([network for member in group for network in member.networks])
            mixtures.append(Mixture(networks, failure=next((m.failure for m in group if m.failure), None)))
        return mixtures


_AVERAGED = AveragedNetwork()
FACTOR = 3.0
"""The factor between neighbouring learning rates."""
MOST = 10
"""The most networks: all of their subsets are compared."""


@dataclass(frozen=True)
class VariedRates(Method):
    """The mean of the best subset of several networks, whose learning rates are found by a search.

    The right learning rate depends on the network, the data and the number of steps, and is rarely known. The first
    network is trained with the rate of ``base``, the second with three times that rate. Every further network extends
    the range of rates by a factor of three, at the end whose network has the lower NLL on the validation part. The
    networks also differ in initial parameters and order of batches. The subset whose mean probability has the lowest
    NLL on the validation part is kept (Caruana et al. 2004, "Ensemble selection", over all subsets instead of
    greedily). A network that diverges is left out.

    Parameters
    ----------
    base : AveragedNetwork
        The method that trains each network.
    members : int
        The number of networks.
    """

    base: AveragedNetwork = _AVERAGED
    members: int = 3

    def __post_init__(self) -> None:
        if not 2 <= self.members <= MOST:
            raise ValueError(f"members must be from 2 to {MOST}, because all subsets are compared; got {self.members}.")

    def rows_at_once(self, task: Task) -> int:
        return self.base.rows_at_once(task)

    @classmethod
    def fit_group(cls, methods: Sequence[VariedRates], tasks: Sequence[Task], **how: Any) -> list[Fitted]:
        return [method.fit_one(task, **how) for method, task in zip(methods, tasks, strict=True)]

    def fit_one(self, task: Task, **how: Any) -> Fitted:
        """Train all networks on one task and keep the best subset."""
        val = task.need_val("The choice among learning rates")
        networks, failures, tried = list[Any](), list[str](), dict[float, float]()
        while len(tried) < self.members:
            rate = next_rate(tried, self.base.rate)
            method, again = replace(self.base, learning_rate=rate), task.again(mix(task.seed, len(tried)) % 2**31)
            tried[rate] = math.inf
            try:
                (fitted,) = AveragedNetwork.fit_group([method], [again], **how)
            except NonFiniteError as error:
                failures.append(str(error))
                continue
            networks += fitted.networks
            probs, labels = held_out_probs(fitted.networks[0], val)
            tried[rate] = _nll([probs], labels, val.sample_weight)
        if not networks:
            return Failed(failures[0], task.n_classes)
        kept = best_subset(begun(networks), val)
        return Mixture(kept, extras={"learning_rates": list(tried)})


def next_rate(tried: Mapping[float, float], first: float) -> float:
    """The next learning rate, given the NLL of the rates that were tried: beyond the better end of their range."""
    if not tried:
        return first
    low, high = min(tried), max(tried)
    return high * FACTOR if len(tried) == 1 or tried[high] < tried[low] else low / FACTOR


def held_out_probs(network: Any, part: Samples) -> tuple[Tensor, Tensor]:
    """A network's probabilities on a part, and the labels, on the CPU."""
    return part.predicted(lambda inputs: network_logits(network, inputs).double().softmax(1))


def best_subset(networks: Sequence[Any], part: Samples) -> tuple[Any, ...]:
    """The subset of networks whose mean probability has the lowest NLL on a part."""
    predictions = [held_out_probs(network, part) for network in networks]
    probs, labels = [member_probs for member_probs, _ in predictions], predictions[0][1]
    count = len(networks)
    subsets = [subset for size in range(1, count + 1) for subset in combinations(range(count), size)]
    chosen = min(subsets, key=lambda subset: _nll([probs[k] for k in subset], labels, part.sample_weight))
    return tuple(networks[k] for k in chosen)


def _nll(probs: Sequence[Tensor], labels: Tensor, weights: Tensor | None) -> float:
    """The (weighted) mean log-loss of the mean of several networks' probabilities."""
    losses = F.nll_loss(torch.stack(list(probs)).mean(0).clamp_min(1e-300).log(), labels, reduction="none")
    share = torch.ones_like(losses) if weights is None else weights.to(losses)
    return float((share * losses).sum() / share.sum())


@dataclass(frozen=True)
class Calibrated(Method):
    """Train with ``base``, which can be any method, then fit a calibrator on the validation part.

    Parameters
    ----------
    calibrator : str
        A name in :data:`calibrant.posthoc.CALIBRATORS`; "auto" for :class:`calibrant.posthoc.Auto`; "map" for the
        choice between a confidence map and a temperature (:func:`calibrant.methods.confidence.choose_map`), which
        ``extras["confidence"]`` tells; or "prior-temperature" for a temperature with a prior near 1.
    base : Method
        The method that trains.
    """

    calibrator: str
    base: Method = _STANDARD

    def __post_init__(self) -> None:
        check_calibrator(self.calibrator)

    def need_val(self, task: Task) -> Samples:
        """The validation part; an error if there is none."""
        return task.need_val(f"The calibrator {self.calibrator!r}")

    def calibrate(self, model: Fitted, task: Task) -> Fitted:
        """The calibrated form of a trained model, or the model itself if its training failed."""
        part = self.need_val(task)
        return model if model.failure else recalibrated(model, *held_out_logits(model, part), self.calibrator)

    def rows_at_once(self, task: Task) -> int:
        return self.base.rows_at_once(task)

    @classmethod
    def fit_group(cls, methods: Sequence[Calibrated], tasks: Sequence[Task], **how: Any) -> list[Fitted]:
        for method, task in zip(methods, tasks, strict=True):
            method.need_val(task)  # before training
        trained = methods[0].base.fit_group([m.base for m in methods], tasks, **how)
        return [m.calibrate(model, task) for m, model, task in zip(methods, trained, tasks, strict=True)]


_PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128, patience=200)


@dataclass(frozen=True)
class CrossFitted(Method):
    """The mean of networks that ``base`` trains, each without one of K folds, calibrated on held-out labels.

    The training and validation parts are pooled. Each network is trained without its fold. With the default base, it is
    restored to the state with the lowest loss on that fold. The classifier is that of :class:`SelfCalibrated`:
    ``(1 − λ)·softmax(mean_k z_k(x)/T + b) + λ/C``. T, b and λ are fitted to held-out logits: those of the networks that
    were not trained on a sample. There are no outer variables, so the cost is K plain trainings, for any model.

    Parameters
    ----------
    base : Method
        Any method that trains one network with a training and a validation part.
    folds : int
        K, the number of folds.
    repeats : int
        How often new folds are drawn; ``folds·repeats`` networks are trained.
    """

    base: Method = _PLAIN
    folds: int = 5
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}.")

    def rows_at_once(self, task: Task) -> int:
        return self.folds * self.repeats * self.base.rows_at_once(task)

    @classmethod
    def fit_group(cls, methods: Sequence[CrossFitted], tasks: Sequence[Task], **how: Any) -> list[Fitted]:
        first, tasks = methods[0], [grouped(task.read()) for task in tasks]
        parts = [fold_tasks(task, first.folds, first.repeats) for task in tasks]
        flat = [fold_task for networks in parts for fold_task in networks]
        trained = iter(first.base.fit_group([first.base] * len(flat), flat, **how))
        pairs = ([(network, t) for t in networks for network in next(trained).networks] for networks in parts)
        return [calibrated_mean(CrossFit.of(p), "plain", len(t.train)) for p, t in zip(pairs, tasks, strict=True)]
