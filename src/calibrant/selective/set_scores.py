"""Scores of classes for prediction sets; classes with low scores enter the set first.

For a row with class probabilities p, sorted from the most to the least probable (equal ones keep the order of the
columns), a class y has its probability p_y, its rank o_y = 1, 2, …, and ρ_y, the total probability of the classes that
rank before it. With u in [0, 1]::

    LAC     1 − p_y                                   Sadinle, Lei & Wasserman 2019
    APS     ρ_y + u·p_y                               Romano, Sesia & Candès 2020
    RAPS    ρ_y + u·p_y + λ·max(0, o_y − k)           Angelopoulos, Bates, Jordan & Malik 2021, Eq. (4)

Randomised scores draw u uniformly for each row. The others use u = 0, which gives the most probable class the score 0
and puts it into every set. Published code without random numbers often uses u = 1 instead. That is also valid. But with
two classes the less probable one then always has score 1, so that either all sets hold both classes or none does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from calibrant.base.inputs import check_probs


class Ranked(NamedTuple):
    """Probability and rank of classes within their row; three arrays of one shape."""

    proba: np.ndarray
    """p_y, the probability of the class."""
    above: np.ndarray
    """ρ_y, the total probability of the classes that rank before it."""
    rank: np.ndarray
    """o_y, 1 for the most probable class."""

    def at(self, labels: np.ndarray) -> Ranked:
        """Select one class of each row."""
        return Ranked(*(np.take_along_axis(values, labels[:, None], axis=1)[:, 0] for values in self))


def as_probs(probs: Any) -> np.ndarray:
    """Return validated (n, C) probabilities as float64 on the CPU."""
    return check_probs(probs).double().cpu().numpy()


def rank_classes(probs: np.ndarray) -> Ranked:
    """Rank all classes of each row, (n, C); equal probabilities keep the order of the columns."""
    order = np.argsort(-probs, axis=1, kind="stable")
    sorted_probs = np.take_along_axis(probs, order, axis=1)
    before = np.zeros_like(sorted_probs)
    np.cumsum(sorted_probs[:, :-1], axis=1, out=before[:, 1:])
    above, rank = np.empty_like(probs), np.empty(probs.shape, dtype=np.int64)
    np.put_along_axis(above, order, before, axis=1)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(1, probs.shape[1] + 1), probs.shape), axis=1)
    return Ranked(probs, above, rank)


class SetScore(Protocol):
    """The interface of a score of classes."""

    name: ClassVar[str]

    @property
    def randomised(self) -> bool:
        """Whether the score uses u."""

    def __call__(self, classes: Ranked, u: Any) -> np.ndarray:
        """Return the score of each class; `u` is ignored by scores that are not randomised."""


@dataclass(frozen=True)
class LAC:
    """1 − p_y: the smallest sets on average. With `allow_empty=True`, rows that resemble no class get empty sets."""

    name: ClassVar[str] = "lac"
    randomised: ClassVar[bool] = False

    def __call__(self, classes: Ranked, u: Any) -> np.ndarray:
        """Return 1 − p_y."""
        return 1 - classes.proba


@dataclass(frozen=True)
class APS:
    """The probability ranked before the class: sets grow where the row is hard.

    `randomised` adds u·p_y with a uniform u for each row. With `allow_empty=True` the coverage is then exactly the
    requested one, up to 1/(n + 1). Without empty sets it is higher, and the deterministic form gives smaller sets.
    """

    randomised: bool = False

    name: ClassVar[str] = "aps"

    def __call__(self, classes: Ranked, u: Any) -> np.ndarray:
        """Return ρ_y + u·p_y."""
        return classes.above + u * classes.proba if self.randomised else classes.above


@dataclass(frozen=True)
class RAPS:
    """APS with a penalty for classes beyond rank `k_reg`, which avoids large sets with many classes.

    The defaults are those of the authors' tutorial for 1,000 classes. With at most `k_reg` classes this equals APS.
    Choose `k_reg` and `penalty` (λ) without the rows that the rule is fitted on.
    """

    randomised: bool = False
    k_reg: int = 5
    penalty: float = 0.01

    name: ClassVar[str] = "raps"

    def __post_init__(self) -> None:
        if self.k_reg < 0:
            raise ValueError(f"k_reg must be 0 or larger; got {self.k_reg}. It is the last rank without a penalty.")
        if not 0 <= self.penalty < np.inf:
            raise ValueError(f"penalty must be a finite number of 0 or more; got {self.penalty}.")

    def __call__(self, classes: Ranked, u: Any) -> np.ndarray:
        """Return ρ_y + u·p_y + λ·max(0, o_y − k)."""
        return APS(self.randomised)(classes, u) + self.penalty * np.maximum(0, classes.rank - self.k_reg)


SCORES: dict[str, type[LAC] | type[APS] | type[RAPS]] = {score.name: score for score in (LAC, APS, RAPS)}


def find_score(score: str | SetScore) -> SetScore:
    """Return a score given by name ("lac", "aps", "raps") or as a value."""
    if isinstance(score, LAC | APS | RAPS):
        return score
    if isinstance(score, str) and score in SCORES:
        return SCORES[score]()
    raise ValueError(f"score must be one of {', '.join(map(repr, SCORES))}, LAC(), APS(…) or RAPS(…); got {score!r}.")


def draw(score: SetScore, n: int, seed: int | np.random.Generator | None) -> Any:
    """Return u of n rows, or 0 for a score that is not randomised."""
    return np.random.default_rng(seed).random(n) if score.randomised else 0.0


def score_to_dict(score: SetScore) -> dict[str, Any]:
    """Return the score as plain values for JSON."""
    return {"name": score.name, **asdict(score)}  # type: ignore[call-overload]


def score_from_dict(values: dict[str, Any]) -> SetScore:
    """Read what `score_to_dict` wrote."""
    return SCORES[values["name"]](**{key: value for key, value in values.items() if key != "name"})
