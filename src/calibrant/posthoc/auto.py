"""Choosing a calibrator by cross-validated log-loss, or none if none is clearly better."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from calibrant.base.settings import check_choice
from calibrant.posthoc._base import Calibrator, Floats, check_strength
from calibrant.posthoc.binning import HistogramBinning
from calibrant.posthoc.isotonic import Isotonic, IsotonicConfidence, OrderPreservingIsotonic
from calibrant.posthoc.matrix import Dirichlet, Matrix, StructuredMatrix, Vector
from calibrant.posthoc.neural import NeuralCalibrator
from calibrant.posthoc.platt import Beta, Platt
from calibrant.posthoc.temperature import AttendedTemperature, EnsembleTemperature, Temperature

CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": Temperature,
    "attended-temperature": AttendedTemperature,
    "ensemble-temperature": EnsembleTemperature,
    "platt": Platt,
    "vector": Vector,
    "beta": Beta,
    "order-preserving-isotonic": OrderPreservingIsotonic,
    "isotonic-confidence": IsotonicConfidence,
    "structured-matrix": StructuredMatrix,
    "matrix": Matrix,
    "dirichlet": Dirichlet,
    "neural": NeuralCalibrator,
    "histogram": HistogramBinning,
    "isotonic": Isotonic,
}
"""All calibrators by name, from few parameters to many; a new calibrator is one more row."""

_UNITS, _DRAWS, _LEVEL = 64, 99, 0.02

# Second stages: they keep the class and change the confidence.
_CONFIDENCE = ("temperature", "ensemble-temperature", "order-preserving-isotonic", "isotonic-confidence")
# Number of the best single calibrators that get a second stage.
_FIRST_STAGES = 3
# The smallest normal number; zeros are replaced by it before logarithms are taken.
_TINY = np.finfo(float).tiny


class Auto(Calibrator):
    """Choose a calibrator by cross-validated log-loss, among all of them, pairs of them, and the raw scores.

    Every calibrator of `CALIBRATORS` is fitted on all folds but one and scored on the remaining fold. "neural", which
    takes the longest, is fitted only if the held-out errors of the best other calibrator still depend on the
    log-probabilities, by a score test at the level of about 4 %. The three best, and temperature scaling, are then
    tried with a second stage on the confidence. It is fitted on predictions of the first stage for rows that the first
    stage did not see. Let d be the paired difference of two log-losses per row, and
    s its standard error.

    1. The raw scores stay unless the best candidate is better by more than ``margin`` · s. The best of thirty
       candidates looks better than it is, so this rule protects models that are already calibrated.
    2. Otherwise the choice is the simplest candidate that is within one s of the best and is itself better than the raw
       scores by more than ``margin`` · s. (This is the one-standard-error rule of Breiman, Friedman, Olshen and Stone
       1984, with the paired s, which is smaller than that of the losses themselves.)

    The chosen stages are then fitted to all rows.

    Parameters
    ----------
    candidates : sequence of str, optional
        Names of the calibrators to compare; None for all.
    stages : {1, 2}
        1 for single calibrators only, 2 for pairs as well.
    folds : int
        Number of folds. With fewer than 4 rows per fold nothing is compared, and the raw scores stay.
    margin : float
        By how many standard errors a calibrator must be better than the raw scores.
    random_state : int
        Seed of the folds.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    stages_ : list
        The fitted calibrators, applied in this order; empty if the raw scores stay.
    choice_ : str
        The name of the choice, such as "raw", "temperature" or "matrix, isotonic-confidence".
    comparison_ : list of dict
        One dict per candidate, best first: name, nll, difference to the raw scores, standard_error of that difference,
        seconds, chosen, note. `summary` returns it as text.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.posthoc import Auto
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> Auto(candidates=["temperature", "vector"]).fit(3 * logits, labels).choice_
    'temperature'
    """

    can_fall_below_chance = True

    def __init__(
        self,
        candidates: Sequence[str] | None = None,
        stages: int = 2,
        folds: int = 5,
        margin: float = 2.0,
        random_state: int = 0,
        *,
        from_probs: bool = False,
    ) -> None:
        self.candidates = candidates
        self.stages = stages
        self.folds = folds
        self.margin = margin
        self.random_state = random_state
        self.from_probs = from_probs

    def summary(self) -> str:
        """Return the comparison as a text table."""
        check_is_fitted(self)
        return format_rows(self.comparison_, self.margin)

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        names = self._check()
        self.stages_: list[Calibrator] = []
        if len(labels) < 4 * self.folds:
            note = f"fewer than {4 * self.folds} rows: too few to compare"
            rows = [Row("raw", (), -scores[np.arange(len(labels)), labels], 0.0, note)]
        else:
            rows = self._compare(names, scores, labels, weights)
        chosen = choose(rows, weights, self.margin)
        self.choice_ = chosen.name
        self.comparison_ = table_rows(rows, weights, chosen.name)
        if chosen.stages:
            first = self._fitted(chosen.stages[0], scores, labels, weights)
            self.stages_ = [first]
            for name in chosen.stages[1:]:
                assert chosen.first_scores is not None
                self.stages_.append(self._fitted(name, chosen.first_scores, labels, weights))

    def _check(self) -> list[str]:
        if isinstance(self.candidates, str):
            raise ValueError(
                f"candidates must be a list; got the text {self.candidates!r}. Pass [{self.candidates!r}]."
            )
        names = list(CALIBRATORS) if self.candidates is None else list(self.candidates)
        for name in names:
            check_choice("candidates", name, CALIBRATORS)
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        check_choice("stages", self.stages, (1, 2))
        check_strength("margin", self.margin)
        return names

    def _compare(self, names: Sequence[str], scores: Floats, labels: np.ndarray, weights: Floats) -> list[Row]:
        fold = stratified_folds(labels, self.folds, self.random_state)
        rows = [Row("raw", (), -scores[np.arange(len(labels)), labels], 0.0, "", scores)]
        for name in sorted(names, key=lambda name: name == "neural"):  # the slowest comes last
            best = min(rows, key=lambda row: row.mean(weights)).scores
            if name == "neural" and best is not None and not pattern_left(best, labels, weights, self.random_state):
                rows.append(Row(name, (name,), None, 0.0, "not tried: the errors of the best have no pattern"))
            else:
                rows.append(self._score((name,), name, scores, labels, weights, fold))
        if self.stages == 1:
            return rows
        single = sorted((row for row in rows[1:] if row.usable), key=lambda row: row.mean(weights))
        first_stages = [row for i, row in enumerate(single) if i < _FIRST_STAGES or row.name == "temperature"]
        for first in first_stages:
            for second in _CONFIDENCE:
                if second in names and second != first.name and first.scores is not None:
                    stages = (first.name, second)
                    rows.append(self._score(stages, second, first.scores, labels, weights, fold))
        return rows

    def _score(
        self, stages: tuple[str, ...], name: str, scores: Floats, labels: np.ndarray, weights: Floats, fold: np.ndarray
    ) -> Row:
        """Log-loss of each row under a calibrator that was fitted without the row's fold."""
        begin = time.perf_counter()
        out = np.empty_like(scores)
        shared: dict[str, Any] = {}
        try:
            for k in range(self.folds):
                inside, outside = fold != k, fold == k
                calibrator = self._fitted(name, scores[inside], labels[inside], weights[inside], **shared)
                if hasattr(calibrator, "odir_"):
                    shared = {"odir": calibrator.odir_}  # one strength for all folds, since the search is slow
                out[outside] = np.log(np.maximum(calibrator.predict_proba(scores[outside]), _TINY))
        except ValueError as error:
            return Row(", ".join(stages), stages, None, time.perf_counter() - begin, str(error))
        losses = -out[np.arange(len(labels)), labels]
        first_scores = scores if len(stages) == 2 else None
        return Row(", ".join(stages), stages, losses, time.perf_counter() - begin, "", out, first_scores)

    @staticmethod
    def _fitted(name: str, scores: Floats, labels: np.ndarray, weights: Floats, **params: Any) -> Calibrator:
        with warnings.catch_warnings():
            # The held-out loss shows whether a candidate failed to converge.
            warnings.simplefilter("ignore")
            return CALIBRATORS[name](**params).fit(scores, labels, weights)

    def _answer(self, scores: Floats, top: np.ndarray) -> tuple[np.ndarray, Floats]:
        probs = np.exp(scores)
        for stage in self.stages_:
            top, probs = stage._top_and_probs(scores)
            top, scores = stage._decide(top, probs), np.log(np.maximum(probs, _TINY))
        return top, probs

    def _decide(self, top: np.ndarray, probs: Floats) -> np.ndarray:
        # The last stage may keep a class although another has a larger probability.
        return top


def stratified_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold of each row; every class, even a rare one, is spread as evenly as possible."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), dtype=int)
    fold[order] = np.arange(len(labels)) % folds
    return fold


@dataclass(frozen=True)
class Row:
    """One candidate: its log-loss on each held-out row, or the reason why there is none."""

    name: str
    stages: tuple[str, ...]
    losses: Floats | None
    seconds: float
    note: str = ""
    scores: Floats | None = None
    """Log-probabilities of the held-out rows."""
    first_scores: Floats | None = None
    """Log-probabilities of the first stage, to which the second is fitted."""

    @property
    def usable(self) -> bool:
        return self.losses is not None and bool(np.isfinite(self.losses).all())

    def mean(self, weights: Floats) -> float:
        if self.losses is None or not self.usable:
            return np.inf
        return float(np.average(self.losses, weights=weights))


def choose(rows: Sequence[Row], weights: Floats, margin: float) -> Row:
    """The raw scores, unless a row is better by `margin` standard errors; then the simplest row near the best."""
    raw = rows[0]
    best = min(rows, key=lambda row: row.mean(weights))
    gain, error = difference(raw, best, weights)
    if best is raw or not gain > margin * error:
        return raw
    near = []
    for row in rows[1:]:
        if row.usable:
            excess, spread = difference(row, best, weights)
            gain, error = difference(raw, row, weights)
            if excess <= spread and gain > margin * error:
                near.append(row)
    return min(near, key=_simplicity)


def difference(a: Row, b: Row, weights: Floats) -> tuple[float, float]:
    """Mean loss of `a` minus that of `b`, and the standard error of this difference over the rows."""
    if not (a.usable and b.usable):
        return np.nan, np.nan
    assert a.losses is not None
    assert b.losses is not None
    gaps = a.losses - b.losses
    share = weights / weights.sum()
    mean = float(share @ gaps)
    return mean, float(np.sqrt((share**2) @ (gaps - mean) ** 2))


def pattern_left(log_probs: Floats, labels: np.ndarray, weights: Floats, seed: int) -> bool:
    """Whether the errors of probabilities follow a pattern in the log-probabilities that a small network could learn.

    It is a score test of the two parts of :class:`NeuralCalibrator`, each at a level of 2 %.
    """
    return min(pattern_p_values(log_probs, labels, weights, seed)) <= _LEVEL


def pattern_p_values(log_probs: Floats, labels: np.ndarray, weights: Floats, seed: int) -> list[float]:
    """The p-values of the network and of the curve.

    The residuals (label minus probability) are correlated with random hidden units, and with pieces of a curve of each
    class's own log-probability. The largest correlation of each part is compared with those of labels drawn from the
    probabilities.
    """
    rng = np.random.default_rng(seed)
    count, classes = log_probs.shape
    probs, capped = np.exp(log_probs), np.maximum(log_probs, -30.0)
    spread = capped.std(axis=0)
    x = (capped - capped.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    hidden = np.tanh(x @ rng.normal(size=(classes, _UNITS)) * 2 / np.sqrt(classes) + rng.normal(size=_UNITS))
    units = weights[:, None] * np.column_stack([np.ones(count), hidden])
    knots = np.quantile(capped, np.linspace(0.1, 0.9, 5))
    curve = [weights @ (probs * np.maximum(capped - knot, 0.0)).sum(axis=1) for knot in knots]
    expected = units.T @ probs, np.array(curve)
    cumulative = probs.cumsum(axis=1)[:, :-1]
    sums: tuple[list[Floats], list[Floats]] = [], []
    for draw in range(_DRAWS + 1):
        y = labels if draw == 0 else (cumulative < rng.random((count, 1))).sum(axis=1)
        by_class = np.stack([np.bincount(y, weights=unit, minlength=classes) for unit in units.T])
        sums[0].append((by_class - expected[0]).ravel())
        sums[1].append(weights @ np.maximum(capped[np.arange(count), y][:, None] - knots, 0.0) - expected[1])
    p_values = []
    for part in sums:
        values = np.stack(part)
        scale = values[1:].std(axis=0)
        statistic = (values[:, scale > 0] ** 2 / scale[scale > 0] ** 2).max(axis=1, initial=0.0)
        p_values.append(float(np.mean(statistic >= statistic[0])))
    return p_values


def table_rows(rows: Sequence[Row], weights: Floats, chosen: str) -> list[dict[str, Any]]:
    """The rows of `Auto.comparison_`: plain values, best first."""
    raw, table = rows[0], []
    for row in sorted(rows, key=lambda row: row.mean(weights)):
        gap, error = difference(row, raw, weights)
        entry: dict[str, Any] = {"name": row.name, "nll": None, "difference": None, "standard_error": None}
        if row.usable:
            entry |= {"nll": row.mean(weights), "difference": gap, "standard_error": error}
        table.append(entry | {"seconds": row.seconds, "chosen": row.name == chosen, "note": row.note})
    return table


def format_rows(table: Sequence[dict[str, Any]], margin: float) -> str:
    """The table as text; the choice is marked."""
    width = max(len(entry["name"]) for entry in table)
    lines = [f"  {'calibrator':{width}}  {'NLL':>8}  {'minus raw':>10}  {'± s.e.':>8}  {'seconds':>7}"]
    for entry in table:
        mark = "→" if entry["chosen"] else " "
        if entry["nll"] is None:
            lines.append(f"{mark} {entry['name']:{width}}  {entry['note'] or 'no finite loss'}")
        else:
            numbers = f"{entry['nll']:8.4f}  {entry['difference']:+10.4f}  {entry['standard_error']:8.4f}"
            lines.append(f"{mark} {entry['name']:{width}}  {numbers}  {entry['seconds']:7.2f}")
            if entry["note"]:
                lines[-1] += f"  {entry['note']}"
    rule = f"Cross-validated log-loss. Raw scores stay unless a calibrator is better by {margin:g} standard errors;"
    return "\n".join(
        [*lines, rule, "among the calibrators, the simplest within one standard error of the best is chosen."]
    )


def _simplicity(row: Row) -> tuple[int, ...]:
    places = [list(CALIBRATORS).index(name) for name in row.stages]
    # A pair is as complex as its more complex part, and more complex than that part alone.
    return max(places), len(places), sum(places)
