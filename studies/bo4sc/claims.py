"""Check each sentence of the first paper's Section 4 with the stored runs.

A claim about several sets is judged set by set. A set confirms it if the mean over seeds has the claimed sign and its
95 % interval excludes zero. z is the distance of the printed value from our mean, in standard deviations of one run:
beyond ±2, the printed value would be unusual among our runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

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


class Claim(NamedTuple):
    """A sentence of the paper, the printed values, ours, their distances z, the number of runs, and the verdict."""

    sentence: str
    paper: str
    here: str
    z: str
    runs: int
    verdict: str


class Sign(NamedTuple):
    """A sentence that says: a metric of a method, minus that of a rival if one is named, is above or below zero.

    ``sign`` is 1 or −1. ``only`` and ``without`` name the sets that the sentence is about; default: all sets for which
    the metric was measured. ``absolute`` compares absolute values.
    """

    metric: str
    methods: tuple[str, ...]
    """The method, and the rival if there is one."""
    sign: int
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    absolute: bool = False

    def values(self, records: Records, dataset: str) -> Values:
        """The quantity on a set, by seed."""
        own, *rivals = (
            {seed: abs(v) if self.absolute else v for seed, v in values_of(records, self.metric, dataset, m).items()}
            for m in self.methods
        )
        return {seed: own[seed] - rivals[0][seed] for seed in own if seed in rivals[0]} if rivals else own

    def printed(self, dataset: str) -> float | None:
        """The paper's value of the difference, if its Table 1 has one."""
        table = PAPER.get({"ece10": "ece"}.get(self.metric, self.metric))
        if not table or len(self.methods) < 2:
            return None
        own, rival = (table[method][dataset] for method in self.methods)
        return own - rival

    def judge(self, sentence: str, records: Records) -> Claim:
        """The sentence, judged set by set."""
        sets = [name for name in self.only or datasets(records) if name not in self.without]
        measured = {name: list(own.values()) for name in sets if (own := self.values(records, name))}
        means = {name: mean_interval(values) for name, values in measured.items()}
        printed = {name: value for name in means if (value := self.printed(name)) is not None}
        z = [(value - means[name].value) / statistics.stdev(measured[name]) for name, value in printed.items()]
        confirmed = [name for name, estimate in means.items() if _beyond_zero(estimate, self.sign)]
        reversed_on = [name for name, estimate in means.items() if _beyond_zero(estimate, -self.sign)]
        verdict = f"on {len(confirmed)} of {len(means)} sets" if confirmed else "no"
        if reversed_on:
            verdict += f"; the opposite on {', '.join(reversed_on)}"
        return Claim(
            sentence,
            "; ".join(f"{name} {format_number(value, 3)}" for name, value in printed.items()) or "stated",
            _listed(means, 3),
            "; ".join(format_number(distance, 1) for distance in z) or "–",
            min(map(len, measured.values())),
            "yes" if len(confirmed) == len(means) else verdict,
        )


class Share(NamedTuple):
    """A sentence about a share; "some" needs any run, "most" and "mainly" need a mean above one half."""

    paper: str
    metric: str
    method: str
    sets: tuple[str, ...]

    def judge(self, sentence: str, records: Records) -> Claim:
        """The sentence, judged on all its sets."""
        sets = [name for name in self.sets if name in datasets(records)]
        shares = {name: list(values_of(records, self.metric, name, self.method).values()) for name in sets}
        if self.paper == "some":  # in how many runs there are any
            shares = {name: [float(value > 0) for value in values] for name, values in shares.items()}
        means = {name: mean_interval(values) for name, values in shares.items()}
        holds = min(value.value for value in means.values()) > (0.0 if self.paper == "some" else 0.5)
        runs = min(map(len, shares.values()))
        return Claim(sentence, self.paper, _listed(means, 2), "–", runs, "yes" if holds else "no")


PLANE = "(share of the plane with confidence above 0.9, difference; Fig. 1)"
CLAIMS: dict[str, Sign | Share] = {
    "ECE of BO4SC below that of Standard": Sign("ece10", ("bo4sc", "standard"), -1),
    "ECE of BO4SC below that of isotonic regression, except on BAC": Sign(
        "ece10", ("bo4sc", "isotonic"), -1, without=("bac",)
    ),
    "ECE of isotonic regression below that of Standard, except on Spiral 3.5": Sign(
        "ece10", ("isotonic", "standard"), -1, without=("spirals-3.5",)
    ),
    "ECE of isotonic regression above that of Standard on Spiral 3.5": Sign(
        "ece10", ("isotonic", "standard"), 1, only=("spirals-3.5",)
    ),
    "accuracy of Standard above that of BO4SC on Blobs 1.3, Blobs 1.7 and Spiral 3.5 (Table 1)": Sign(
        "accuracy", ("bo4sc", "standard"), -1, without=("spirals-2.5", "bac")
    ),
    "accuracy of BO4SC above that of Standard on Spiral 2.5 and BAC (Table 1)": Sign(
        "accuracy", ("bo4sc", "standard"), 1, only=("spirals-2.5", "bac")
    ),
    "Standard is over-confident (mean confidence minus accuracy)": Sign("confidence_minus_accuracy", ("standard",), 1),
    "Standard has a larger gap between confidence and accuracy than BO4SC (difference of the absolute gaps)": Sign(
        "confidence_minus_accuracy", ("standard", "bo4sc"), 1, absolute=True
    ),
    "BO4SC has a smaller gap between confidence and accuracy than isotonic regression (difference)": Sign(
        "confidence_minus_accuracy", ("bo4sc", "isotonic"), -1, absolute=True
    ),
    "isotonic regression gives confidences below 0.5 on the spirals (share of runs)": Share(
        "some", "share_below_chance", "isotonic", SPIRALS
    ),
    "isotonic regression is overly cautious (mean confidence minus accuracy; Section 5)": Sign(
        "confidence_minus_accuracy", ("isotonic",), -1
    ),
    f"broader uncertain regions than Standard: BO4SC {PLANE}": Sign("share_map_above_90", ("bo4sc", "standard"), -1),
    f"broader uncertain regions than Standard: isotonic regression {PLANE}": Sign(
        "share_map_above_90", ("isotonic", "standard"), -1
    ),
    "most misclassified training samples end with a weight below 0.5 (share; Fig. 3)": Share(
        "most", "misclassified_low_weight", "bo4sc", ("blobs-1.7",)
    ),
    "the weights of the other samples are mainly above 0.5 (share; Fig. 3)": Share(
        "mainly", "correct_high_weight", "bo4sc", ("blobs-1.7",)
    ),
}
"""What Section 4 says about the records of the paper's three methods, in the order of the report."""


def claims(records: Records, numbers: Numbers) -> list[Claim]:
    """All claims of Section 4 that the records of the paper's three methods and the figure data can judge."""
    judged = [claim.judge(sentence, records) for sentence, claim in CLAIMS.items()]
    return [*judged, *_figure3(numbers.get("weights")), _cost(records)]


def values_of(records: Records, metric: str, dataset: str, method: str) -> Values:
    """The values that were measured, by seed."""
    values = by_seed(records, metric, dataset=dataset, method=method)
    return {seed: value for seed, value in values.items() if value is not None}


def _beyond_zero(estimate: Estimate, sign: int) -> bool:
    return bool(estimate.low > 0 if sign > 0 else estimate.high < 0)


def _listed(means: Mapping[str, Estimate], digits: int) -> str:
    return "; ".join(f"{name} {format_number(value, digits)}" for name, value in means.items())


def _figure3(weights: Numbers | None) -> list[Claim]:
    """What the paper reads from Fig. 3, in the one run whose weights are stored at all epochs."""
    if not weights:
        return []
    history, dataset = np.asarray(weights["history"], dtype=float), weights["dataset"]
    problem = load_problem(dataset, weights["seed"])
    inputs, labels = problem.train
    clarity, final = problem.posterior(inputs).max(1), history[-1]
    core, boundary = np.median(final[clarity > 0.99]), final[clarity < 0.7]
    near, any_two = bundles(history, inputs, labels)
    judged = {
        "weights move in bundles (mean correlation of the steps of two weights of one class: nearest neighbours, and "
        "two samples at random; Fig. 3)": ("stated", f"{near:.2f}, at random {any_two:.2f}", near > any_two),
        "weights are 1 where the class is clear (median where the exact posterior exceeds 0.99; Fig. 3)": (
            "1.0",
            f"{core:.2f}",
            core > 0.95,
        ),
        "weights converge towards 0.5 or lower at the boundaries (median where the exact posterior is below 0.7, and "
        "share at most 0.6; Fig. 3)": (
            "0.5 or lower",
            f"{np.median(boundary):.2f}, share {(boundary <= 0.6).mean():.2f}",
            np.median(boundary) <= 0.6,
        ),
    }
    return [
        Claim(sentence, printed, f"{dataset} {here}", "–", 1, "yes" if holds else "no")
        for sentence, (printed, here, holds) in judged.items()
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
        members = np.flatnonzero(labels == label)
        if len(members) < 2:
            continue
        _, neighbours = cKDTree(inputs[members]).query(inputs[members], 2)
        partners = members[(np.arange(len(members)) + generator.integers(1, len(members), len(members))) % len(members)]
        near += list((standardised[:, members] * standardised[:, members[neighbours[:, 1]]]).mean(0))
        any_two += list((standardised[:, members] * standardised[:, partners]).mean(0))
    return float(np.mean(near)), float(np.mean(any_two))


def _cost(records: Records) -> Claim:
    """Time of BO4SC beside the same training without weights, where each trained in its own population."""
    times = {}
    for dataset in datasets(records):
        members = {m: values_of(records, "members", dataset, m) for m in ("standard", "standard-matched")}
        seconds = {m: values_of(records, "seconds", dataset, m) for m in ("bo4sc", "standard-matched")}
        if statistics.mean(members["standard-matched"].values()) < statistics.mean(members["standard"].values()):
            weighted, control = (statistics.mean(seconds[m].values()) for m in ("bo4sc", "standard-matched"))
            times[dataset] = weighted / control
    return Claim(
        "time of BO4SC not always competitive with traditional training (against the same training without weights; "
        "Section 5)",
        "stated",
        "; ".join(f"{name} {value:.1f} × the time" for name, value in times.items()),
        "–",
        len(seconds["bo4sc"]),
        "yes" if times and min(times.values()) > 1 else "no",
    )
