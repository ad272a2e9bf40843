"""Check each sentence of the first paper's Section 4 with the stored runs.

A claim about several sets is judged set by set. A set confirms it if the mean over seeds has the claimed sign and its
95 % interval excludes zero. z is the distance of the printed value from our mean, in standard deviations of one run:
beyond ±2, the printed value would be unusual among our runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from calibrant.metrics import Estimate, mean_interval
from calibrant.report import format_number
from studies.bo4sc.figures import Numbers
from studies.bo4sc.table1 import PAPER
from studies.common.verdicts import Records, datasets
from studies.report import by_seed
from studies.sets import load_problem

SPIRALS = ("spirals-2.5", "spirals-3.5")
Values = Mapping[int, float]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the printed values, ours, their distances z, the number of runs, and the verdict."""

    sentence: str
    paper: str
    here: str
    z: str
    runs: int
    verdict: str

    @property
    def row(self) -> list[object]:
        """The claim as a row of the table."""
        return [self.sentence, self.paper, self.here, self.z, self.runs, self.verdict]


@dataclass(frozen=True)
class Sign:
    """A sentence that says: a metric of a method, minus that of a rival if one is named, is above or below zero.

    ``sign`` is 1 or −1. ``only`` and ``without`` name the sets that the sentence is about; default: all sets for which
    the metric was measured. ``absolute`` compares absolute values.
    """

    sentence: str
    quantity: tuple[str, ...]
    """The metric, the method, and the rival if there is one."""
    sign: int
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    absolute: bool = False

    def values(self, records: Records, dataset: str) -> Values:
        """The quantity on a set, by seed."""
        metric, *methods = self.quantity
        own, *rivals = (
            {seed: abs(value) if self.absolute else value for seed, value in known(values).items()}
            for values in (by_seed(records, metric, dataset=dataset, method=method) for method in methods)
        )
        return {seed: own[seed] - rivals[0][seed] for seed in own if seed in rivals[0]} if rivals else own

    def printed(self, dataset: str) -> float | None:
        """The paper's value of the difference, if its Table 1 has one."""
        metric, method, *rivals = self.quantity
        table = PAPER.get({"ece10": "ece"}.get(metric, metric))
        return table[method][dataset] - table[rivals[0]][dataset] if table and rivals else None


@dataclass(frozen=True)
class Share:
    """A sentence about a share; "some" needs any run, "most" and "mainly" need a mean above one half."""

    sentence: str
    paper: str
    quantity: tuple[str, str]
    """The metric and the method."""
    sets: tuple[str, ...]


PLANE = "(share of the plane with confidence above 0.9, difference; Fig. 1)"
CLAIMS: tuple[Sign | Share, ...] = (
    Sign("ECE of BO4SC below that of Standard", ("ece10", "bo4sc", "standard"), -1),
    Sign(
        "ECE of BO4SC below that of isotonic regression, except on BAC",
        ("ece10", "bo4sc", "isotonic"),
        -1,
        without=("bac",),
    ),
    Sign(
        "ECE of isotonic regression below that of Standard, except on Spiral 3.5",
        ("ece10", "isotonic", "standard"),
        -1,
        without=("spirals-3.5",),
    ),
    Sign(
        "ECE of isotonic regression above that of Standard on Spiral 3.5",
        ("ece10", "isotonic", "standard"),
        1,
        only=("spirals-3.5",),
    ),
    Sign(
        "accuracy of Standard above that of BO4SC on Blobs 1.3, Blobs 1.7 and Spiral 3.5 (Table 1)",
        ("accuracy", "bo4sc", "standard"),
        -1,
        without=("spirals-2.5", "bac"),
    ),
    Sign(
        "accuracy of BO4SC above that of Standard on Spiral 2.5 and BAC (Table 1)",
        ("accuracy", "bo4sc", "standard"),
        1,
        only=("spirals-2.5", "bac"),
    ),
    Sign("Standard is over-confident (mean confidence minus accuracy)", ("confidence_minus_accuracy", "standard"), 1),
    Sign(
        "Standard has a larger gap between confidence and accuracy than BO4SC (difference of the absolute gaps)",
        ("confidence_minus_accuracy", "standard", "bo4sc"),
        1,
        absolute=True,
    ),
    Sign(
        "BO4SC has a smaller gap between confidence and accuracy than isotonic regression (difference)",
        ("confidence_minus_accuracy", "bo4sc", "isotonic"),
        -1,
        absolute=True,
    ),
    Share(
        "isotonic regression gives confidences below 0.5 on the spirals (share of runs)",
        "some",
        ("share_below_chance", "isotonic"),
        SPIRALS,
    ),
    Sign(
        "isotonic regression is overly cautious (mean confidence minus accuracy; Section 5)",
        ("confidence_minus_accuracy", "isotonic"),
        -1,
    ),
    Sign(f"broader uncertain regions than Standard: BO4SC {PLANE}", ("share_map_above_90", "bo4sc", "standard"), -1),
    Sign(
        f"broader uncertain regions than Standard: isotonic regression {PLANE}",
        ("share_map_above_90", "isotonic", "standard"),
        -1,
    ),
    Share(
        "most misclassified training samples end with a weight below 0.5 (share; Fig. 3)",
        "most",
        ("misclassified_low_weight", "bo4sc"),
        ("blobs-1.7",),
    ),
    Share(
        "the weights of the other samples are mainly above 0.5 (share; Fig. 3)",
        "mainly",
        ("correct_high_weight", "bo4sc"),
        ("blobs-1.7",),
    ),
)
"""What Section 4 says about the records of the paper's three methods, in the order of the report."""


def claims(records: Records, numbers: Numbers) -> list[Claim]:
    """All claims of Section 4 that the records of the paper's three methods and the figure data can judge."""
    judged = [_sign(c, records) if isinstance(c, Sign) else _share(c, records) for c in CLAIMS]
    return [*judged, *_figure3(numbers), _cost(records, datasets(records))]


def known(values: Mapping[int, float | None]) -> Values:
    """The values that were measured."""
    return {seed: value for seed, value in values.items() if value is not None}


def _sign(claim: Sign, records: Records) -> Claim:
    sets = [name for name in claim.only or datasets(records) if name not in claim.without]
    measured = {name: list(own.values()) for name in sets if (own := claim.values(records, name))}
    means = {name: mean_interval(values) for name, values in measured.items()}
    confirmed = [name for name, estimate in means.items() if _beyond_zero(estimate, claim.sign)]
    reversed_on = [name for name, estimate in means.items() if _beyond_zero(estimate, -claim.sign)]
    printed = {name: value for name in means if (value := claim.printed(name)) is not None}
    distances = {
        name: (value - means[name].value) / statistics.stdev(measured[name]) for name, value in printed.items()
    }
    return Claim(
        claim.sentence,
        "; ".join(f"{name} {format_number(value, 3)}" for name, value in printed.items()) or "stated",
        "; ".join(f"{name} {format_number(estimate, 3)}" for name, estimate in means.items()),
        "; ".join(format_number(distance, 1) for distance in distances.values()) or "–",
        min(map(len, measured.values())),
        _verdict(len(confirmed), len(means), reversed_on),
    )


def _beyond_zero(estimate: Estimate, sign: int) -> bool:
    return bool(estimate.low > 0 if sign > 0 else estimate.high < 0)


def _verdict(confirmed: int, total: int, reversed_on: list[str]) -> str:
    if confirmed == total:
        return "yes"
    opposite = f"; the opposite on {', '.join(reversed_on)}" if reversed_on else ""
    return f"no{opposite}" if confirmed == 0 else f"on {confirmed} of {total} sets{opposite}"


def _share(claim: Share, records: Records) -> Claim:
    metric, method = claim.quantity
    shares = {
        name: known(by_seed(records, metric, dataset=name, method=method))
        for name in claim.sets
        if name in datasets(records)
    }
    if claim.paper == "some":  # in how many runs there are any
        shares = {name: {seed: float(value > 0) for seed, value in own.items()} for name, own in shares.items()}
    means = {name: mean_interval(own.values()) for name, own in shares.items()}
    limit = 0.0 if claim.paper == "some" else 0.5
    return Claim(
        claim.sentence,
        claim.paper,
        "; ".join(f"{name} {format_number(value, 2)}" for name, value in means.items()),
        "–",
        min(map(len, shares.values())),
        "yes" if all(value.value > limit for value in means.values()) else "no",
    )


def _figure3(numbers: Numbers) -> list[Claim]:
    """What the paper reads from Fig. 3, in the one run whose weights are stored at all epochs."""
    weights = numbers.get("weights")
    if not weights:
        return []
    history = np.asarray(weights["history"], dtype=float)
    inputs, labels = load_problem(weights["dataset"], weights["seed"]).train
    posterior = load_problem(weights["dataset"], weights["seed"]).posterior(inputs)
    clarity, final = posterior.max(1), history[-1]
    core, boundary = clarity > 0.99, clarity < 0.7
    near, any_two = bundles(history, inputs, labels)
    return [
        Claim(
            "weights move in bundles (mean correlation of the steps of two weights of one class: nearest neighbours, "
            "and two samples at random; Fig. 3)",
            "stated",
            f"{weights['dataset']} {near:.2f}, at random {any_two:.2f}",
            "–",
            1,
            "yes" if near > any_two else "no",
        ),
        Claim(
            "weights are 1 where the class is clear (median where the exact posterior exceeds 0.99; Fig. 3)",
            "1.0",
            f"{weights['dataset']} {np.median(final[core]):.2f}",
            "–",
            1,
            "yes" if np.median(final[core]) > 0.95 else "no",
        ),
        Claim(
            "weights converge towards 0.5 or lower at the boundaries (median where the exact posterior is below 0.7, "
            "and share at most 0.6; Fig. 3)",
            "0.5 or lower",
            f"{weights['dataset']} {np.median(final[boundary]):.2f}, share {(final[boundary] <= 0.6).mean():.2f}",
            "–",
            1,
            "yes" if np.median(final[boundary]) <= 0.6 else "no",
        ),
    ]


def bundles(history: np.ndarray, inputs: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Mean correlation of the steps of two samples' weights: nearest neighbours of one class, and two at random.

    ``history`` is (epochs, samples). Weights that never move are left out.
    """
    steps = np.diff(history, axis=0)
    moving = steps.std(0) > 0
    standardised = (steps[:, moving] - steps[:, moving].mean(0)) / steps[:, moving].std(0)
    inputs, labels, generator = inputs[moving], labels[moving], np.random.default_rng(seed)
    near, any_two = [], []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if len(own) < 2:
            continue
        _, neighbours = cKDTree(inputs[own]).query(inputs[own], 2)
        partners = own[(np.arange(len(own)) + generator.integers(1, len(own), len(own))) % len(own)]
        near += list((standardised[:, own] * standardised[:, own[neighbours[:, 1]]]).mean(0))
        any_two += list((standardised[:, own] * standardised[:, partners]).mean(0))
    return float(np.mean(near)), float(np.mean(any_two))


def _cost(records: Records, sets: list[str]) -> Claim:
    """Time of BO4SC beside the same training without weights, where each trained in its own population."""

    def share(metric: str, dataset: str, method: str) -> float:
        found = by_seed(records, metric, dataset=dataset, method=method)
        return statistics.mean(value for value in found.values() if value is not None)

    alone = [name for name in sets if share("members", name, "standard-matched") < share("members", name, "standard")]
    times = {name: share("seconds", name, "bo4sc") / share("seconds", name, "standard-matched") for name in alone}
    return Claim(
        "time of BO4SC not always competitive with traditional training (against the same training without weights; "
        "Section 5)",
        "stated",
        "; ".join(f"{name} {value:.1f} × the time" for name, value in times.items()),
        "–",
        len(by_seed(records, "seconds", dataset=sets[0], method="bo4sc")),
        "yes" if times and min(times.values()) > 1 else "no",
    )
