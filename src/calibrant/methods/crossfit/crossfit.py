"""Cross-fitted training: the networks of K folds with one φ, the last step on held-out logits, and wrong labels.

Cross-fitted bilevel training: K networks, each trained without one fold, share one φ learned from held-out losses.
Every label trains K − 1 networks and evaluates the K-th. No data are set aside for validation, and φ (a few numbers) is
learned from all labels::

    min_φ  mean_k F_k(φ, θ_k(φ)),     θ_k trained without fold k,  F_k the loss on fold k

The classifier is the mean of the networks. It is evaluated on each sample by the networks that were not trained on that
sample. With ``repeats``, several networks are held out for each sample, and their mean is closer to that of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logit, softmax
from torch import Tensor

from calibrant.bilevel import LabelNoise, Solution
from calibrant.data.splits.exact_copies import independent_size
from calibrant.data.streams.streams import mix
from calibrant.methods.core.method import failure
from calibrant.methods.core.results import Mixture, network_logits, read_outer, suspicion
from calibrant.methods.core.samples import Samples, cycled
from calibrant.methods.core.task import Task, pooled_part
from calibrant.methods.crossfit.folds import Fold, deal
from calibrant.pool.pool import RARE, even_share, lapsing_loss, least_lapse


@dataclass(frozen=True)
class FoldTask(Task):
    """The task of one network: train on all of ``pooled`` except one fold, and evaluate on that fold."""

    fold: Fold = field(kw_only=True)
    pooled: Samples = field(kw_only=True)
    constants: dict[str, Tensor] = field(default_factory=dict, kw_only=True)
    """Constants for the losses."""

    def streams(self, wanted: int | None) -> dict[str, Any]:
        """The data of both levels. All rows, including padding rows, keep their indices in ``pooled``."""
        assert self.val is not None
        index = {"train": cycled(self.fold.train, len(self.train)), "val": cycled(self.fold.judge, len(self.val))}
        return {name: self.level(name, wanted, index=rows, hyper=self.constants) for name, rows in index.items()}


def fold_tasks(
    task: Task, number: int, repeats: int = 1, choose: float = 0.0, *, only_val: bool = False
) -> list[FoldTask]:
    """One task for each fold of a task whose rows were grouped: of its ``splits``, or else of newly drawn folds.

    The share ``choose`` of the validation rows does not move φ. With ``only_val``, training rows are not held out.
    Several networks start as in :meth:`Task.again`; a single one as given.
    """
    pooled = pooled_part(task)
    if task.splits is None:
        val = None if task.val is None else slice(len(task.train), None)
        held_from, choose_from = val if only_val else None, val if choose else None
        how: dict[str, Any] = {"held_from": held_from, "choose": choose, "choose_from": choose_from}
        folds = deal(pooled.labels, number, seed=task.seed, repeats=repeats, groups=pooled.groups, **how)
    elif task.val is None:
        none = pooled.labels.new_empty(0)
        splits = [[torch.as_tensor(rows, device=none.device) for rows in split] for split in task.splits]
        folds = [Fold(train, held, none) for train, held in splits]
    else:
        raise ValueError("Folds can be given only for training rows; leave out the validation part.")
    tasks, dense = [], pooled.without_sparse
    for k, fold in enumerate(folds):
        seed = mix(task.seed, k) % 2**31
        model = task.again(seed).model if len(folds) > 1 else task.model
        parts = dense[fold.train], dense[fold.judge]
        tasks.append(FoldTask(*parts, task.n_classes, seed, model, fold=fold, pooled=pooled))
    return tasks


@dataclass(frozen=True)
class CrossFit:
    """The result of cross-fitting on one sample set."""

    heads: tuple[Solution, ...]
    folds: tuple[Fold, ...]
    data: Samples
    shares: tuple[float, ...] | None = None
    """The weight of each network in the mean; None: equal weights."""
    history: dict[str, Tensor] = field(default_factory=dict)
    """Losses and hypergradient norms of each outer step: means over the networks of the first kind."""

    @classmethod
    def of(cls, trained: Sequence[tuple[Any, FoldTask]]) -> CrossFit:
        """The result for networks and their tasks, without those that are untrained after an interrupt."""
        started = [(network, task) for network, task in trained if network.outer_steps] or list(trained)
        networks, tasks = zip(*started, strict=True)
        return cls(networks, tuple(task.fold for task in tasks), tasks[0].pooled)

    @cached_property
    def held_out_logits(self) -> Tensor:
        """The mean logits of the networks that were not trained on a row, (n, C); NaN if all networks were."""
        total: Tensor | None = None
        dense = self.data.without_sparse
        for head, fold, share in zip(self.heads, self.folds, self.shares or [1.0] * len(self.heads), strict=True):
            logits = torch.cat([network_logits(head, x) for x, _ in dense[fold.held].pieces()]).double()
            if total is None:
                total, count = logits.new_zeros(len(self.data), logits.shape[1]), logits.new_zeros(len(self.data), 1)
            total[fold.held] += share * logits
            count[fold.held] += share
        assert total is not None
        return total / torch.where(count > 0, count, torch.nan)

    def rows(self, purpose: str) -> Tensor:
        """All rows with one purpose ("judge", "choose" or "held"), in order."""
        return torch.cat([getattr(fold, purpose) for fold in self.folds]).unique()


class LastStep(NamedTuple):
    """``q(z) = (1 − λ)·softmax(z/T + b) + λ/C``."""

    temperature: float
    bias: np.ndarray
    lapse: float
    loss: float
    """The total log-loss of all samples plus the penalty of the prior; lower means better logits."""


def fit_last_step(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    groups: np.ndarray | None = None,
    spread: float = 0.5,
    lapse_spread: float = 2.0,
) -> LastStep:
    """T, b and λ with the lowest penalised log-loss.

    The priors are N(0, spread²) for ``log T`` and each ``b_c``, and N(−6, lapse_spread²) for the log-odds of λ.

    This is temperature scaling (Guo et al. 2017) with the biases of Alexandari et al. 2020: L2 shrinks a network
    towards equal class probabilities, which a temperature alone cannot correct. λ is the lapse rate of Wichmann & Hill
    2001: if a share of the labels is wrong however clear the input is, confidence has an upper limit that no
    temperature can describe. The prior counts as much as a few samples. Without it, T would go to 0 for networks that
    classify every held-out sample correctly.

    Parameters
    ----------
    logits, labels : (n, C) and (n,)
    weights : (n,), optional; their scale does not matter. The more they differ, the fewer samples they count as
    groups : (n,), optional; a group number per sample. Samples of one group count as fewer independent samples
    spread, lapse_spread : standard deviations of the priors
    """
    count = logits.shape[1]
    share = np.ones(len(labels)) if weights is None else weights
    size = independent_size(labels, softmax(logits, axis=1), groups) * even_share(share)
    share = share * (size / share.sum())
    centre = np.concatenate([[0.0, RARE], np.zeros(count)])
    scale = np.concatenate([[spread, lapse_spread], np.full(count, spread)])

    def cost(values: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = logits * np.exp(-values[0])
        loss, slope, to_lapse = lapsing_loss(scaled + values[2:], labels, share, expit(values[1]))
        away = (values - centre) / scale
        gradient = np.concatenate([[-(slope * scaled).sum(), to_lapse], slope.sum(0)])
        return 0.5 * away @ away + loss, away / scale + gradient

    bounds = [(-3.0, 3.0), (logit(least_lapse(size, count)), 3.0)] + [(-3.0, 3.0)] * count
    best = minimize(cost, centre, jac=True, method="L-BFGS-B", bounds=bounds)
    return LastStep(float(np.exp(best.x[0])), best.x[2:], float(expit(best.x[1])), float(best.fun))


_LEAST = 1e-300
_LARGEST = 0.99


def labels_differ(fit: CrossFit, train: int, *, significance: float = 2.5) -> bool:
    """Whether held-out training labels are predicted less accurately than validation labels.

    The difference in error rates must exceed ``significance`` standard errors. Error rates are compared instead of
    losses, because their variance is much smaller and flipped labels raise them directly. The standard error assumes
    equal error rates, because zero errors among few validation samples do not prove an error rate of zero.
    """
    rows = fit.rows("held")
    wrong = (fit.held_out_logits[rows].argmax(1) != fit.data.labels[rows]).double()
    weights = fit.data.weights[rows]
    from_train, from_val = rows < train, rows >= train
    if not (weights[from_train].sum() > 0 and weights[from_val].sum() > 0):
        return False

    def share(chosen: Tensor) -> Tensor:
        return (weights * wrong)[chosen].sum() / weights[chosen].sum()

    def precision(chosen: Tensor) -> Tensor:
        return weights[chosen].square().sum() / weights[chosen].sum().square()  # 1/n for equal weights

    pooled = share(from_train | from_val)
    error = (pooled * (1 - pooled) * (precision(from_train) + precision(from_val))).sqrt()
    return bool(share(from_train) - share(from_val) > significance * error)


def flip_rate(probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """The maximum-likelihood estimate of the rate ε at which labels were flipped to another class.

    ``probs`` (n, C) are a classifier's probabilities of the *true* label. The observed label y then has the probability
    ``(1 − ε)·p_y + ε/(C − 1)·(1 − p_y)``. The rate that training learns (:class:`calibrant.bilevel.LabelNoise`) helps
    to train such a classifier, but it is not an estimate: it is often far above the share of wrong labels.
    """
    p_label = probs.double().gather(1, labels.unsqueeze(1)).squeeze(1)
    share = torch.ones_like(p_label) if weights is None else weights.to(p_label) / weights.to(p_label).mean()

    def cost(rate: float) -> float:
        observed = (1 - rate) * p_label + rate / (probs.shape[1] - 1) * (1 - p_label)
        return -float(share @ observed.clamp_min(_LEAST).log())

    return float(minimize_scalar(cost, bounds=(0.0, _LARGEST), method="bounded").x)


def wrong_label(probs: Tensor, labels: Tensor, rate: float) -> Tensor:
    """The posterior probability that each label is wrong, if labels were flipped at this rate."""
    rate = min(max(rate, 1e-9), _LARGEST - 1e-3)
    noise = LabelNoise(probs.shape[1], initial=rate, largest=_LARGEST).double()
    with torch.no_grad():
        return noise.suspicion(probs.double().clamp_min(_LEAST).log(), labels)


def calibrated_mean(fit: CrossFit, candidate: str, train: int) -> Mixture:
    """The mean of the networks, with the last step (T, b and λ) fitted to held-out logits."""
    logits, data, head = fit.held_out_logits, fit.data, fit.heads[0]
    rows = fit.rows("judge")
    last = last_step(logits[rows], data, rows)
    extras: dict[str, Any] = {"candidate": candidate, "temperature": last.temperature, "lapse": last.lapse}
    extras["bias"], extras["history"] = torch.from_numpy(last.bias), fit.history
    with torch.no_grad():
        extras |= head.problem.outer_view.run(head.phi, read_outer)
    means: dict[str, Any] = {"pool": "logits", "shares": fit.shares, "failure": failure(*fit.heads)}
    mixture = Mixture(fit.heads, last.temperature, extras["bias"], last.lapse, extras=extras, **means)
    extras["held_out"] = mixture.calibrated(logits).cpu()
    extras |= _doubts(mixture, fit, train)
    return mixture


def last_step(logits: Tensor, data: Samples, rows: Tensor) -> LastStep:
    """T, b and λ for the held-out logits of some rows."""
    groups = None if data.groups is None else data.groups[rows].cpu().numpy()
    arrays = (values.cpu().numpy() for values in (logits, data.labels[rows], data.weights[rows]))
    return fit_last_step(*arrays, groups=groups)


def _doubts(mixture: Mixture, fit: CrossFit, train: int) -> dict[str, Any]:
    """How wrong each training label looks, 0 to 1, and the rate of wrong labels if φ includes one.

    Each label is judged by networks that were not trained on it, if there are any. In the label-noise candidate all
    networks are trained on it, but with a loss that allows for wrong labels.
    """
    part, held = fit.data[slice(0, train)], mixture.extras["held_out"][:train]
    never_held_out = held.isnan().any(1)
    probs = held
    if never_held_out.any():
        probs = torch.where(never_held_out.unsqueeze(1), part.predicted(mixture.probs)[0], held)
    labels = part.labels.cpu()
    if "label_noise" not in mixture.extras:
        return {"suspicion": suspicion(torch.ones_like(probs[:, 0]), probs, labels)}
    rate = flip_rate(probs, labels, part.weights.cpu())
    return {
        "suspicion": wrong_label(probs, labels, rate),
        "label_noise": torch.full((probs.shape[1],), rate, device="cpu"),
    }


def held_out_losses(fit: CrossFit, mixture: Mixture, rows: Tensor) -> Tensor:
    """The weighted held-out loss of each of some rows."""
    probs = mixture.calibrated(fit.held_out_logits[rows])
    losses = -probs.gather(1, fit.data.labels[rows].unsqueeze(1)).squeeze(1).clamp_min(1e-300).log()
    weights = fit.data.weights[rows]
    return (losses * weights / weights.mean()).cpu()
