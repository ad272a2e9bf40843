"""Networks, trees and linear models in one pool: cross-fitted on the same folds, weighted by their losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.special import log_softmax
from torch import Tensor

from calibrant.data.splits.exact_copies import independent_size
from calibrant.methods.core.results import Fitted, Mixture, suspicion
from calibrant.methods.core.samples import Samples
from calibrant.methods.crossfit.crossfit import CrossFit
from calibrant.pool.boosted_trees import Trees
from calibrant.pool.linear_member import Linear, cross_fit_sparse
from calibrant.pool.pool import Pool, fit_pool
from calibrant.pool.pool_members import CrossFittedMember, MemberKind, Model, Rows, cross_fit

NETWORK = "network"
KINDS: dict[str, MemberKind] = {"linear": Linear(), "trees": Trees()}
"""The members other than the networks, in the order in which they are fitted."""
MEMBERS = (NETWORK, "trees", "linear")
"""The default members of :class:`calibrant.SelfCalibratedClassifier`."""
MOST_CLASSES = {"trees": 100}
"""The most classes for a kind of member. Boosting grows a tree per class and iteration, so many classes are slow."""
SMALL = 0.02
"""A member whose weight is below this share of all weights is left out."""
MINOR = 0.2
"""A member whose weight is below this share is left out if the held-out loss does not increase without it."""


def check_members(members: Sequence[str]) -> None:
    """Raise an error unless members are distinct names of kinds and include the network."""
    kinds = (NETWORK, *KINDS)
    if isinstance(members, str) or set(members) - set(kinds) or len(set(members)) < len(members):
        names = ", ".join(map(repr, kinds))
        raise ValueError(f"members must be a tuple of {names}, each once; got {members!r}.")
    if NETWORK not in members:
        raise ValueError(f"members must include 'network', because the others use its folds; got {members!r}.")


def check_table(members: Sequence[str], part: Samples) -> None:
    """Raise an error if there are members other than the networks and the samples are not rows of numbers."""
    inputs = part.inputs
    if set(members) == {NETWORK} or (isinstance(inputs, Tensor) and inputs.dim() == 2 and part.prepare is None):
        return
    got = f"of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else f"as a {type(inputs).__name__}"
    raise ValueError(
        f"members={members!r} needs rows of numbers, (samples, features); got inputs {got}. For other inputs, use "
        "members=('network',)."
    )


def used_kinds(members: Sequence[str], n_classes: int) -> list[str]:
    """The kinds other than the networks for a table with this number of classes, in the order of fitting."""
    return [name for name in KINDS if name in members and n_classes <= MOST_CLASSES.get(name, n_classes)]


@dataclass(frozen=True)
class Blend(Fitted):
    """A log-linear pool of the networks' mean and the other members; see :mod:`calibrant.pool.pool`."""

    mixture: Mixture | None
    """The networks, whose mean logits are one member; None if the pool leaves them out."""
    others: Mapping[str, Model]
    """The other members by name."""
    pool: Pool
    """Its first weight is that of the networks, if there are any; the weights of ``others`` follow in order."""
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    @property
    def networks(self) -> tuple[Any, ...]:  # type: ignore[override]
        return self.mixture.networks if self.mixture else ()

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the members, in the order of the pool's weights."""
        return (*([NETWORK] if self.mixture else []), *self.others)

    def probs(self, inputs: Any, sparse: csr_array | None = None) -> Tensor:
        each = [] if self.mixture is None else [self.mixture.mean(inputs).cpu().numpy()]
        values = torch.as_tensor(inputs, device="cpu").numpy()
        each += [model.scores(values, sparse) for model in self.others.values()]
        scores = torch.from_numpy(np.reshape(each, (len(each), len(values), len(self.pool.bias))))
        return torch.from_numpy(self.pool.probs(scores.log_softmax(2).numpy()))


class Judged(NamedTuple):
    """What the members' held-out predictions are compared with."""

    labels: np.ndarray
    weights: np.ndarray
    groups: np.ndarray | None
    judges: np.ndarray
    """Whether the pool may be fitted to a row."""

    @classmethod
    def of(cls, fit: CrossFit, labels: np.ndarray) -> Judged:
        """The rows of a cross-fit that are held out and may be used to fit the pool."""
        judges = np.zeros(len(labels), dtype=bool)
        judges[fit.rows("judge").cpu().numpy()] = True
        groups = None if fit.data.groups is None else fit.data.groups.cpu().numpy()
        return cls(labels, fit.data.weights.cpu().numpy(), groups, judges)

    def groups_of(self, rows: np.ndarray) -> np.ndarray | None:
        """The groups of some rows."""
        return None if self.groups is None else self.groups[rows]

    def usable(self, log_probs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Rows that all members predict, and these predictions, (members, rows, C)."""
        both = np.stack(list(log_probs.values()))
        rows = np.flatnonzero(self.judges & ~np.isnan(both).any((0, 2)))
        return rows, both[:, rows]

    def evidence(self, log_probs: np.ndarray) -> Rows:
        """The rows that one member predicts, with its log-probabilities as inputs; copies count as fewer rows."""
        rows, (values,) = self.usable({"": log_probs})
        labels, weights = self.labels[rows], self.weights[rows]
        size = independent_size(labels, np.exp(log_softmax(values, axis=1)), self.groups_of(rows))
        return Rows(values, labels, weights * (size / weights.sum()), values.shape[1])

    def pool(self, log_probs: Mapping[str, np.ndarray], doubt: bool = True) -> Pool:
        """The pool of some members."""
        rows, both = self.usable(log_probs)
        return fit_pool(both, self.labels[rows], self.weights[rows], groups=self.groups_of(rows), doubt=doubt)

    def loss(self, log_probs: Mapping[str, np.ndarray], pool: Pool) -> float:
        """The mean log-loss of a pool of these members."""
        rows, both = self.usable(log_probs)
        losses = -np.log(pool.probs(both)[np.arange(len(rows)), self.labels[rows]])
        return float(np.average(losses, weights=self.weights[rows]))


def pruned(log_probs: dict[str, np.ndarray], held: Judged) -> tuple[dict[str, np.ndarray], Pool]:
    """The members that are worth keeping, and their pool.

    The prior gives every member some weight. A member of small weight is left out if the held-out loss without it is
    not higher, and in any case if its weight is negligible. If all weights are 0, no member is kept.
    """
    pool = held.pool(log_probs)
    while len(log_probs) > 1 and (total := pool.weights.sum()) > 0:
        least = int(pool.weights.argmin())
        if (share := pool.weights[least] / total) > MINOR:
            break
        fewer = {name: log_probs[name] for k, name in enumerate(log_probs) if k != least}
        rest = held.pool(fewer)
        if share > SMALL and held.loss(fewer, rest) > held.loss(log_probs, pool):
            break
        log_probs, pool = fewer, rest
    return (log_probs, pool) if pool.weights.any() else ({}, Pool(pool.weights[:0], pool.bias, pool.lapse))


def blended(members: Sequence[str], mixture: Mixture, fit: CrossFit, train: int, seed: int) -> Fitted:
    """Cross-fit the other members on the networks' folds, and pool all members.

    If the networks found wrong labels, the other members weight each training label by the probability that it is
    right.
    """
    if mixture.failure:
        return mixture
    rows = _rows(fit, mixture, train)
    folds = first_deal(fit)
    held = Judged.of(fit, rows.labels)
    predicted: dict[str, np.ndarray] = {NETWORK: log_softmax(fit.held_out_logits.cpu().numpy(), axis=1)}
    models: dict[str, Model] = {}
    shape = len(rows.labels), rows.n_classes
    for name in used_kinds(members, rows.n_classes):

        def promising(first: np.ndarray, log_probs: np.ndarray, name: str = name) -> bool:
            full = np.full_like(predicted[NETWORK], np.nan)
            full[first] = log_probs
            weights = held.pool(predicted | {name: full}, doubt=False).weights
            return bool(weights[-1] > SMALL * weights.sum())

        member: CrossFittedMember | None
        if name == "linear" and rows.sparse is not None:
            member = cross_fit_sparse(rows, folds, seed, held.evidence)
        else:
            member = cross_fit(KINDS[name], rows, folds, seed, promising)
        if member is not None:
            predicted[name], models[name] = member.held_out, member.model
    predicted, pool = pruned(predicted, held)
    held_out = torch.from_numpy(pool.probs(np.reshape(list(predicted.values()), (len(predicted), *shape))))
    extras = mixture.extras | {
        "members": tuple(predicted),
        "pool_weights": pool.weights,
        "temperature": pool.temperature,
        "bias": torch.from_numpy(pool.bias),
        "lapse": pool.lapse,
        "held_out": held_out,
    }
    if "label_noise" not in extras:
        train_probs = held_out[:train]
        doubt = suspicion(torch.ones_like(train_probs[:, 0]), train_probs, torch.from_numpy(rows.labels[:train]))
        extras["suspicion"] = torch.where(train_probs.isnan().any(1), extras["suspicion"].double(), doubt.double())
    networks = mixture if NETWORK in predicted else None
    return Blend(networks, {name: models[name] for name in predicted if name != NETWORK}, pool, extras)


def first_deal(fit: CrossFit) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out rows of the folds that hold out a row for the first time.

    These are the folds of the first repeat. Folds that the user gives may overlap, such as those of ShuffleSplit. A row
    that several of them hold out is predicted by the mean of their models.
    """
    folds, seen = [], np.zeros(len(fit.data), dtype=bool)
    for fold in fit.folds:
        held = fold.held.cpu().numpy()
        if not seen[held].all():
            seen[held] = True
            folds.append((fold.train.cpu().numpy(), held))
    return folds


def _rows(fit: CrossFit, mixture: Mixture, train: int) -> Rows:
    data = fit.data
    weights = None if data.sample_weight is None else data.weights.cpu().numpy()
    if "label_noise" in mixture.extras:
        weights = data.weights.cpu().numpy().copy()
        weights[:train] *= 1 - mixture.extras["suspicion"].double().numpy()
    inputs = np.asarray(data.inputs.cpu().numpy(), dtype=np.float64)
    return Rows(inputs, data.labels.cpu().numpy(), weights, mixture.extras["held_out"].shape[1], data.sparse)
