"""Tables of means: headings of the metrics, single cells, and one metric of all methods and sets."""

from __future__ import annotations

import math
from typing import Any, Literal

from calibrant.metrics import Estimate
from calibrant.report import Column, Table
from studies.common.verdicts import ENSEMBLE, Records, datasets, mean, methods

POSTERIOR = "exact posterior"
"""The name of the row with the scores of the exact posterior on the same test samples."""

HEADINGS: dict[str, tuple[str, Literal["low", "high"] | None, int, str]] = {
    "accuracy": ("accuracy", "high", 3, ""),
    "ece10": ("ECE-10", "low", 3, "Expected calibration error, 10 bins of equal width."),
    "ece15": ("ECE-15", "low", 3, "Expected calibration error, 15 bins of equal width."),
    "floor_self15": ("own floor", None, 3, "Noise floor: ECE-15 of a calibrated model with the same confidences."),
    "true_ece": ("true ECE", "low", 4, "ECE-15 against the exact posterior on 20,000 samples, free of label noise."),
    "mean_abs_confidence_truth": (
        "|conf − truth|",
        "low",
        3,
        "Mean distance between confidence and exact probability.",
    ),
    "confidence_minus_accuracy": (
        "conf − acc",
        None,
        3,
        "Mean confidence minus accuracy; above 0 means over-confident.",
    ),
    "share_below_chance": ("below 1/C", None, 3, "Share of predictions with confidence below 1/C."),
    "share_map_above_90": ("map > 0.9", None, 3, "Share of a grid over the input space with confidence above 0.9."),
    "nll": ("NLL", "low", 3, "Mean negative log-likelihood, with probabilities of at least 1e-12."),
    "brier": ("Brier", "low", 3, ""),
    "smooth_ece": ("smECE", "low", 3, "Smooth calibration error (Błasiok & Nakkiran 2023)."),
    "aurc": ("AURC", "low", 4, "Area under the risk–coverage curve."),
}


def pivot(records: Records, metric: str) -> Table:
    """One metric's mean and interval, with a row per method and a column per set."""
    sets = datasets(records)
    _, better, digits, _ = HEADINGS[metric]
    rows: list[list[Any]] = [[m, *(cell(records, metric, name, m) for name in sets)] for m in methods(records)]
    floor = {"ece10": "floor_posterior10", "ece15": "floor_posterior15"}.get(metric)
    if floor:
        rows.append([POSTERIOR, *(cell(records, floor, name, methods(records)[0]) for name in sets)])
    columns = [Column("method"), *(Column(name, better, digits) for name in sets)]
    return Table(columns, rows, exempt=[POSTERIOR, ENSEMBLE])


def cell(records: Records, metric: str, dataset: str, method: str) -> Estimate | None:
    """The mean with its interval, or None (shown as a dash) if nothing was measured."""
    value = mean(records, metric, dataset, method)
    return None if math.isnan(value.value) else value
