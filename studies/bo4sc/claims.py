"""Check each sentence of the first paper's Section 4 with the stored runs.

A claim about several sets is judged set by set. A set confirms it if the mean over seeds has the claimed sign and its
95 % interval excludes zero. z is the distance of the printed value from our mean, in standard deviations of one run:
beyond ±2, the printed value would be unusual among our runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from calibrant.metrics import Estimate, mean_interval
from calibrant.report import by_seed, format_number
from studies.bo4sc.figures import Numbers
from studies.bo4sc.table1 import PAPER
from studies.common.verdicts import Records, datasets
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


def claims(records: Records, numbers: Numbers) -> list[Claim]:
    """All claims of Section 4 that the records of the paper's three methods and the figure data can judge."""
    sets = datasets(records)

    def metric(name: str, method: str) -> Callable[[str], Values]:
        return lambda dataset: known(by_seed(records, name, dataset=dataset, method=method))

    def gap(method: str) -> Callable[[str], Values]:
        return lambda dataset: {s: abs(v) for s, v in metric("confidence_minus_accuracy", method)(dataset).items()}

    standard, isotonic, bo4sc = (metric("ece10", method) for method in ("standard", "isotonic", "bo4sc"))
    overconfident = metric("confidence_minus_accuracy", "standard")
    below_chance = metric("share_below_chance", "isotonic")
    certain = {method: metric("share_map_above_90", method) for method in ("standard", "isotonic", "bo4sc")}
    planes = [name for name in sets if certain["standard"](name)]
    return [
        _signs("ECE of BO4SC below that of Standard", sets, _minus(bo4sc, standard), -1, _printed("ece", "standard")),
        _signs(
            "ECE of BO4SC below that of isotonic regression, except on BAC",
            [name for name in sets if name != "bac"],
            _minus(bo4sc, isotonic),
            -1,
            _printed("ece", "isotonic"),
        ),
        _signs(
            "ECE of isotonic regression below that of Standard, except on Spiral 3.5",
            [name for name in sets if name != "spirals-3.5"],
            _minus(isotonic, standard),
            -1,
            _printed("ece", "standard", "isotonic"),
        ),
        _signs(
            "ECE of isotonic regression above that of Standard on Spiral 3.5",
            ["spirals-3.5"],
            _minus(isotonic, standard),
            1,
            _printed("ece", "standard", "isotonic"),
        ),
        _signs(
            "accuracy of Standard above that of BO4SC on Blobs 1.3, Blobs 1.7 and Spiral 3.5 (Table 1)",
            [name for name in sets if name not in ("spirals-2.5", "bac")],
            _minus(metric("accuracy", "bo4sc"), metric("accuracy", "standard")),
            -1,
            _printed("accuracy", "standard"),
        ),
        _signs(
            "accuracy of BO4SC above that of Standard on Spiral 2.5 and BAC (Table 1)",
            [name for name in sets if name in ("spirals-2.5", "bac")],
            _minus(metric("accuracy", "bo4sc"), metric("accuracy", "standard")),
            1,
            _printed("accuracy", "standard"),
        ),
        _signs("Standard is over-confident (mean confidence minus accuracy)", sets, overconfident, 1),
        _signs(
            "Standard has a larger gap between confidence and accuracy than BO4SC (difference of the absolute gaps)",
            sets,
            _minus(gap("standard"), gap("bo4sc")),
            1,
        ),
        _signs(
            "BO4SC has a smaller gap between confidence and accuracy than isotonic regression (difference)",
            sets,
            _minus(gap("bo4sc"), gap("isotonic")),
            -1,
        ),
        _shares(
            "isotonic regression gives confidences below 0.5 on the spirals (share of runs)",
            "some",
            {name: {s: float(v > 0) for s, v in below_chance(name).items()} for name in SPIRALS if name in sets},
        ),
        _signs(
            "isotonic regression is overly cautious (mean confidence minus accuracy; Section 5)",
            sets,
            metric("confidence_minus_accuracy", "isotonic"),
            -1,
        ),
        *(
            _signs(
                f"broader uncertain regions than Standard: {title} (share of the plane with confidence above 0.9, "
                "difference; Fig. 1)",
                planes,
                _minus(certain[method], certain["standard"]),
                -1,
            )
            for title, method in (("BO4SC", "bo4sc"), ("isotonic regression", "isotonic"))
        ),
        _shares(
            "most misclassified training samples end with a weight below 0.5 (share; Fig. 3)",
            "most",
            {"blobs-1.7": metric("misclassified_low_weight", "bo4sc")("blobs-1.7")},
        ),
        _shares(
            "the weights of the other samples are mainly above 0.5 (share; Fig. 3)",
            "mainly",
            {"blobs-1.7": metric("correct_high_weight", "bo4sc")("blobs-1.7")},
        ),
        *_figure3(numbers),
        _cost(records, sets),
    ]


def known(values: Mapping[int, float | None]) -> Values:
    """The values that were measured."""
    return {seed: value for seed, value in values.items() if value is not None}


def _minus(a: Callable[[str], Values], b: Callable[[str], Values]) -> Callable[[str], Values]:
    """The difference of two metrics, seed by seed."""

    def values(dataset: str) -> Values:
        first, second = a(dataset), b(dataset)
        return {seed: first[seed] - second[seed] for seed in first if seed in second}

    return values


def _printed(metric: str, other: str, method: str = "bo4sc") -> Callable[[str], float]:
    """The printed difference of two methods."""
    return lambda dataset: PAPER[metric][method][dataset] - PAPER[metric][other][dataset]


def _signs(
    sentence: str,
    sets: list[str],
    values: Callable[[str], Values],
    sign: int,
    printed: Callable[[str], float] | None = None,
) -> Claim:
    """A claim that a quantity is above (sign 1) or below (−1) zero on each of these sets."""
    found = {name: list(values(name).values()) for name in sets}
    means = {name: mean_interval(own) for name, own in found.items()}
    confirmed = [name for name, estimate in means.items() if _beyond_zero(estimate, sign)]
    reversed_on = [name for name, estimate in means.items() if _beyond_zero(estimate, -sign)]
    return Claim(
        sentence,
        "; ".join(f"{name} {format_number(printed(name), 3)}" for name in sets) if printed else "stated",
        "; ".join(f"{name} {format_number(estimate, 3)}" for name, estimate in means.items()),
        "; ".join(
            format_number((printed(name) - estimate.value) / statistics.stdev(found[name]), 1)
            for name, estimate in means.items()
        )
        if printed
        else "–",
        min(map(len, found.values())),
        _verdict(len(confirmed), len(sets), reversed_on),
    )


def _beyond_zero(estimate: Estimate, sign: int) -> bool:
    return bool(estimate.low > 0 if sign > 0 else estimate.high < 0)


def _verdict(confirmed: int, total: int, reversed_on: list[str]) -> str:
    if confirmed == total:
        return "yes"
    opposite = f"; the opposite on {', '.join(reversed_on)}" if reversed_on else ""
    return f"no{opposite}" if confirmed == 0 else f"on {confirmed} of {total} sets{opposite}"


def _shares(sentence: str, paper: str, shares: Mapping[str, Values]) -> Claim:
    """A claim about a share; "some" needs any run, "most" and "mainly" need a mean above one half."""
    means = {name: mean_interval(own.values()) for name, own in shares.items()}
    limit = 0.0 if paper == "some" else 0.5
    return Claim(
        sentence,
        paper,
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
