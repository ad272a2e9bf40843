"""Tables of a search over settings, and the records that belong to a search only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from studies.meta_reg.groups import RunGroup, groups, setup_of, spread
from studies.meta_reg.variants import variants

BASES = ("flg-sece", "flg-sece-published")
CRITERION = "nll_val"
HEADINGS = ["setting", "seeds", "NLL", "ECE %", "error %", "γ std"]
CAPTION = "Mean ± standard deviation over seeds. All columns except γ are measured on the validation part."
_AXES = {"h": "h", "rate": "outer learning rate ×", "strength": "strength of SECE", "tau": "τ"}
_NAME = re.compile(r"(?P<base>flg-sece(?:-published)?)-(?P<axis>h|rate|strength|tau)-(?P<value>[0-9.e+-]+)")


def is_searched(method: str) -> bool:
    """Whether a method belongs only to a search; some outer learning rates are part of the ablation too."""
    found = _NAME.fullmatch(method)
    return found is not None and method not in variants()


def without_searches(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records of a study: without searched settings, and without setups that only a search has run."""
    by_setup: dict[tuple[Any, ...], set[str]] = {}
    for record in records:
        by_setup.setdefault(setup_of(record), set()).add(record["method"])
    only = {
        place
        for place, names in by_setup.items()
        if any(map(is_searched, names)) and all(n in BASES or _NAME.fullmatch(n) for n in names)
    }
    return [r for r in records if setup_of(r) not in only and not is_searched(r["method"])]


def searches(records: Sequence[Mapping[str, Any]]) -> list[tuple[RunGroup, str]]:
    """Each setup and method for which settings were searched."""
    return [
        (group, base)
        for group in groups(records)
        for base in BASES
        if any(is_searched(name) and name.startswith(base) for name in group.methods)
    ]


def best(group: RunGroup, base: str) -> str:
    """The setting of a method with the lowest mean NLL on the validation part."""
    tried = {m: group.values(m, CRITERION) for m in _tried(group, base)}
    means = {m: sum(values) / len(values) for m, values in tried.items() if values}
    return describe(min(means, key=lambda m: means[m]), base)


def describe(method: str, base: str) -> str:
    """A short description of a setting."""
    found = _NAME.fullmatch(method)
    return "default" if method == base or found is None else f"{_AXES[found['axis']]} {float(found['value']):g}"


def rows(group: RunGroup, base: str) -> list[list[Any]]:
    """The settings of a method, with their scores on the validation part."""
    shown = ((CRITERION, 4, 1.0), ("ece_val", 2, 100.0), ("error_val", 2, 100.0), ("gamma_std", 3, 1.0))
    return [
        [
            describe(method, base),
            str(len(group.of(method))),
            *(spread(group.values(method, name), digits, scale) for name, digits, scale in shown),
        ]
        for method in _tried(group, base)
    ]


def _tried(group: RunGroup, base: str) -> list[str]:
    """The settings of a method: the default first, then sorted by axis and value."""

    def place(method: str) -> tuple[str, float]:
        found = _NAME.fullmatch(method)
        return ("", 0.0) if found is None else (found["axis"], float(found["value"]))

    own = [m for m in group.methods if m == base or ((f := _NAME.fullmatch(m)) is not None and f["base"] == base)]
    return sorted(own, key=place)
