"""Read result files and stores that use the former names of settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.report import Results, read_results

FORMER = {
    "outer_rate": "outer_learning_rate",
    "also_rate": "also_learning_rate",
    "weight_lr": "outer_learning_rate",
    "lr": "learning_rate",
}
"""Settings of BO4SC and of its grid, by their former names."""


def current_names(value: Any) -> Any:
    """Replace former names of settings by the present ones, in the keys of nested mappings; lists are not searched.

    >>> current_names({"grid": {"lr": [0.002], "steps": [5]}, "seeds": 3})
    {'grid': {'learning_rate': [0.002], 'steps': [5]}, 'seeds': 3}
    """
    if not isinstance(value, Mapping):
        return value
    return {FORMER.get(key, key): current_names(item) for key, item in value.items()}


def read_with_current_names(path: str | Path) -> Results:
    """Read a result file; its config and records get the present names."""
    found = read_results(path)
    return found._replace(config=current_names(found.config), records=[current_names(r) for r in found.records])
