"""The printed values of the second paper as fractions; `paper.json` holds them as printed, with their source."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any, NamedTuple

METRICS = ("error", "nll", "ece", "mce", "ace", "classwise_ece")
"""The columns of Tables 1 and 2."""


class Printed(NamedTuple):
    """A printed cell: mean and standard deviation over five seeds."""

    mean: float
    std: float


class Quoted(NamedTuple):
    """A row of Table 3: its source, ECE and error, and the id of our run of the same method (if any)."""

    source: str
    ece: float
    error: float
    method: str | None = None


@cache
def paper() -> dict[str, Any]:
    """The content of `paper.json`, as printed: in per cent, except for the NLL."""
    text = (resources.files("studies.meta_reg") / "paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def printed(dataset: str, method: str, metric: str, *, table: int = 1) -> Printed | None:
    """A cell of Table 1 or 2, or None if the paper has no such cell."""
    cell = paper()[f"table{table}"].get(dataset, {}).get(method, {}).get(metric)
    return None if cell is None else Printed(*(value / (1 if metric == "nll" else 100) for value in cell))


def quoted(dataset: str) -> list[Quoted]:
    """The rows of Table 3 for a data set."""
    rows = paper()["table3"].get(dataset, [])
    return [Quoted(**row | {"ece": row["ece"] / 100, "error": row["error"] / 100}) for row in rows]


def claimed_gains() -> dict[str, float]:
    """Section 5.1: CE-DECE minus FLγ-SECE, as a mean over three data sets."""
    return {metric: value / 100 for metric, value in paper()["claims"]["gains"].items()}


def printed_gains() -> dict[str, float]:
    """The same means, computed from Table 1."""
    tables = paper()["table1"].values()
    return {
        m: fmean(table["ce-dece"][m][0] - table["flg-sece"][m][0] for table in tables) / 100 for m in claimed_gains()
    }
