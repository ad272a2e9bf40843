"""The settings of a search over the paper's method: their table, and the records that belong to a search only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from studies.meta_reg.groups import RunGroup, groups, setup_of, spread
from studies.meta_reg.variants import variants
from studies.report import Column, Table

BASES = ("flg-sece", "flg-sece-published")
CRITERION = "nll_val"
COLUMNS: dict[str, tuple[str, int, float]] = {
    CRITERION: ("NLL", 4, 1.0),
    "ece_val": ("ECE %", 2, 100.0),
    "error_val": ("error %", 2, 100.0),
    "gamma_std": ("γ std", 3, 1.0),
}
_AXES = {"h": "h", "rate": "outer learning rate ×", "strength": "strength of SECE", "tau": "τ"}
_NAME = re.compile(r"(?P<base>flg-sece(?:-published)?)-(?P<axis>h|rate|strength|tau)-(?P<value>[0-9.e+-]+)")


def is_searched(method: str) -> bool:
    """Whether a method belongs only to a search; some outer learning rates are part of the ablation too."""
    return _NAME.fullmatch(method) is not None and method not in variants()


def without_searches(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records of a study: without searched settings, and without setups that only a search has run."""
    by_setup: dict[tuple[Any, ...], set[str]] = {}
    for record in records:
        by_setup.setdefault(setup_of(record), set()).add(record["method"])
    of_study = {
        place
        for place, names in by_setup.items()
        if not any(map(is_searched, names)) or any(n not in BASES and not _NAME.fullmatch(n) for n in names)
    }
    return [r for r in records if setup_of(r) in of_study and not is_searched(r["method"])]


def searches(records: Sequence[Mapping[str, Any]]) -> list[tuple[RunGroup, str]]:
    """Each setup and method for which settings were searched."""
    return [
        (group, base)
        for group in groups(records)
        for base in BASES
        if any(is_searched(name) and name.startswith(base) for name in group.methods)
    ]


def searched_table(group: RunGroup, base: str) -> Table:
    """The settings of a method with their scores on the validation part: the default, then by axis and value."""
    tried = {("", 0.0): base} if base in group.methods else {}
    for method in group.methods:
        if (named := _NAME.fullmatch(method)) and named["base"] == base:
            tried[named["axis"], float(named["value"])] = method
    means = {place: fmean(group.values(method, CRITERION)) for place, method in tried.items()}
    rows = [
        [
            f"{_AXES[axis]} {value:g}" if axis else "default",
            str(len(group.of(method))),
            *(spread(group.values(method, name), digits, scale) for name, (_, digits, scale) in COLUMNS.items()),
        ]
        for (axis, value), method in sorted(tried.items())
    ]
    axis, value = min(means, key=lambda place: means[place])
    best = f"{_AXES[axis]} {value:g}" if axis else "default"
    caption = (
        "Mean ± standard deviation over seeds. All columns except γ are measured on the validation part. Lowest NLL: "
        f"{best}."
    )
    return Table(
        [Column(head) for head in ("setting", "seeds", *(head for head, _, _ in COLUMNS.values()))], rows, caption
    )
