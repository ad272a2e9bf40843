"""The printed values of the second paper as fractions; `paper.json` holds them as printed, with their source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

METRICS = ("error", "nll", "ece", "mce", "ace", "classwise_ece")
"""The columns of Tables 1 and 2."""


class Printed(NamedTuple):
    """A printed cell: mean and standard deviation over five seeds."""

    mean: float
    std: float


class Quoted(NamedTuple):
    """A row of Table 3: its source, the id of our run of the same method (if any), ECE and error."""

    source: str
    method: str | None
    ece: float
    error: float


@cache
def paper() -> dict[str, Any]:
    """The content of `paper.json`, as printed: in per cent, except for the NLL."""
    text = (resources.files("studies.meta_reg") / "paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def printed(dataset: str, method: str, metric: str, *, table: int = 1) -> Printed | None:
    """A cell of Table 1 or 2, or None if the paper has no such cell."""
    cell = paper()[f"table{table}"].get(dataset, {}).get(method, {}).get(metric)
    return None if cell is None else Printed(*(value / _unit(metric) for value in cell))


def quoted(dataset: str) -> list[Quoted]:
    """The rows of Table 3 for a data set."""
    rows = paper()["table3"].get(dataset, [])
    return [Quoted(r["source"], r.get("method"), r["ece"] / 100, r["error"] / 100) for r in rows]


def claimed_gains() -> Mapping[str, float]:
    """Section 5.1: CE-DECE minus FLγ-SECE, as a mean over three data sets."""
    return {metric: value / 100 for metric, value in paper()["claims"]["gains"].items()}


def printed_gains() -> dict[str, float]:
    """The same means, computed from Table 1."""
    found = {}
    for metric in claimed_gains():
        gains = [own["ce-dece"][metric][0] - own["flg-sece"][metric][0] for own in paper()["table1"].values()]
        found[metric] = sum(gains) / len(gains) / 100
    return found


def _unit(metric: str) -> float:
    return 1.0 if metric == "nll" else 100.0
