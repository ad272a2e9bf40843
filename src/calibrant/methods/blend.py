"""Networks, trees and linear models in one classifier: cross-fitted on the same folds, weighted by held-out labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor

from calibrant.methods.bo4sc import suspicion
from calibrant.methods.crossfit import CrossFit
from calibrant.methods.fitted import Fitted, Mixture
from calibrant.methods.lines import Linear
from calibrant.methods.members import MemberKind, Model, Rows, cross_fit
from calibrant.methods.pool import Pool, fit_pool
from calibrant.methods.task import Part
from calibrant.methods.trees import Trees

NETWORK = "network"
KINDS: dict[str, MemberKind] = {"linear": Linear(), "trees": Trees()}
"""The members other than the networks, fastest first."""
MEMBERS = (NETWORK, "trees", "linear")
MOST_CLASSES = {"trees": 100}
"""The most classes for a kind of member. Boosting grows a tree per class and iteration, so many classes are slow."""
SMALL = 0.02
"""A member whose weight is below this share of all weights is left out."""


def check_members(members: Sequence[str]) -> None:
    """Raise an error unless members are distinct names of kinds and include the network."""
    known = (NETWORK, *KINDS)
    if isinstance(members, str) or set(members) - set(known) or len(set(members)) < len(members):
        raise ValueError(f"members must be a tuple of {', '.join(map(repr, known))}, each once; got {members!r}.")
    if NETWORK not in members:
        raise ValueError(f"members must include 'network', because the others use its folds; got {members!r}.")


def check_table(members: Sequence[str], part: Part) -> None:
    """Raise an error if there are members other than the networks and the samples are not rows of numbers."""
    inputs = part.inputs
    if set(members) == {NETWORK} or (isinstance(inputs, Tensor) and inputs.dim() == 2 and part.prepare is None):
        return
    got = f"of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else f"as a {type(inputs).__name__}"
    raise ValueError(
        f"members={tuple(members)!r} needs rows of numbers, (samples, features); got inputs {got}. For other inputs, "
        "use members=('network',)."
    )


@dataclass(frozen=True)
class Blend(Fitted):
    """A log-linear pool of the networks' mean and the other members; see :mod:`calibrant.methods.pool`."""

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

    def probs(self, inputs: Any) -> Tensor:
        each = [] if self.mixture is None else [self.mixture.mean(inputs).cpu().numpy()]
        values = torch.as_tensor(inputs).cpu().numpy()
        each += [model.scores(values) for model in self.others.values()]
        count = (len(values), len(self.pool.bias))
        return torch.from_numpy(self.pool.probs(log_softmax(np.reshape(each, (len(each), *count)), axis=2)))


def blended(members: Sequence[str], mixture: Mixture, fit: CrossFit, train: int, seed: int) -> Fitted:
    """Cross-fit the other members on the networks' folds, and pool all members.

    If the networks found wrong labels, the other members weight each training label by the probability that it is
    right.
    """
    if mixture.failure:
        return mixture
    rows = _rows(fit, mixture, train)
    folds = first_deal(fit)
    judges = np.zeros(len(rows.labels), dtype=bool)
    judges[fit.rows("judge").cpu().numpy()] = True
    own = fit.data.sample_weight
    weights = None if own is None else own.double().cpu().numpy()
    groups = None if fit.data.groups is None else fit.data.groups.cpu().numpy()
    known: dict[str, np.ndarray] = {NETWORK: log_softmax(fit.held_out_logits.cpu().numpy(), axis=1)}
    models: dict[str, Model] = {}

    def pooled(found: Mapping[str, np.ndarray], among: np.ndarray, doubt: bool = True) -> Pool:
        both = np.stack(list(found.values()))
        usable = among[judges[among] & ~np.isnan(both[:, among]).any((0, 2))]
        share, together = (None if v is None else v[usable] for v in (weights, groups))
        return fit_pool(both[:, usable], rows.labels[usable], share, groups=together, doubt=doubt)

    for name in (
        name for name in KINDS if name in members and rows.n_classes <= MOST_CLASSES.get(name, rows.n_classes)
    ):

        def promising(held: np.ndarray, log_probs: np.ndarray, name: str = name) -> bool:
            full = np.full_like(known[NETWORK], np.nan)
            full[held] = log_probs
            found = pooled(known | {name: full}, held, doubt=False).weights
            return bool(found[-1] > SMALL * found.sum())

        if (found := cross_fit(KINDS[name], rows, folds, seed, promising)) is not None:
            known[name], models[name] = found.held_out, found.model
    every = np.arange(len(rows.labels))
    pool = pooled(known, every)
    kept = [name for name, w in zip(known, pool.weights, strict=True) if w > SMALL * pool.weights.sum()]
    if 0 < len(kept) < len(known):
        known = {name: known[name] for name in kept}
        pool = pooled(known, every)
    elif not kept:
        known, pool = {}, Pool(pool.weights[:0], pool.bias, pool.lapse)
    held_out = torch.from_numpy(pool.probs(np.reshape(list(known.values()), (len(known), *held_shape(rows)))))
    extras = mixture.extras | {
        "members": tuple(known),
        "pool_weights": pool.weights,
        "temperature": pool.temperature,
        "bias": torch.from_numpy(pool.bias),
        "lapse": pool.lapse,
        "held_out": held_out,
    }
    if "label_noise" not in extras:
        held = held_out[:train]
        doubt = suspicion(torch.ones(train), held, torch.from_numpy(rows.labels[:train]))
        extras["suspicion"] = torch.where(held.isnan().any(1), extras["suspicion"].double(), doubt.double())
    networks = mixture if NETWORK in known else None
    return Blend(networks, {name: models[name] for name in known if name != NETWORK}, pool, extras)


def held_shape(rows: Rows) -> tuple[int, int]:
    """The shape of one member's log-probabilities."""
    return len(rows.labels), rows.n_classes


def first_deal(fit: CrossFit) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out rows of the first set of folds, which ends before any row is held out again."""
    found, seen = [], np.zeros(len(fit.data), dtype=bool)
    for fold in fit.folds:
        held = fold.held.cpu().numpy()
        if seen[held].any():
            break
        seen[held] = True
        found.append((fold.train.cpu().numpy(), held))
    return found


def _rows(fit: CrossFit, mixture: Mixture, train: int) -> Rows:
    data = fit.data
    weights = None if data.sample_weight is None else data.sample_weight.double().cpu().numpy()
    if "label_noise" in mixture.extras:
        right = np.ones(len(data))
        right[:train] -= mixture.extras["suspicion"].double().numpy()
        weights = right if weights is None else right * weights
    inputs = np.asarray(data.inputs.cpu().numpy(), dtype=np.float64)
    return Rows(inputs, data.labels.cpu().numpy(), weights, mixture.extras["held_out"].shape[1])
