"""Merge the configs of several commands or result files, and keep how the runs of each were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.report import Results

ORIGIN = ("command", "date", "device", "machine")
"""The entries of a config that say how its runs were made."""


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two configs: tables and lists are combined; for other entries, the later value wins.

    >>> merged({"sets": ["bac"], "rates": {"a": 1}, "device": "cpu"}, {"sets": ["iris"], "rates": {"a": 2, "b": 3}})
    {'sets': ['bac', 'iris'], 'rates': {'a': 2, 'b': 3}, 'device': 'cpu'}
    """
    found = dict(before)
    for name, value in after.items():
        old = found.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and name != "machine":
            value = {**old, **value}
        elif isinstance(old, list) and isinstance(value, list):
            value = [*old, *(item for item in value if item not in old)]
        found[name] = value
    return found


def origin(config: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Any]:
    """How the runs of a command were made, as an entry of ``other_runs``."""
    return {name: config[name] for name in ORIGIN if name in config} | {"versions": dict(versions)}


def combined(found: Sequence[Results]) -> dict[str, Any]:
    """The config of several result files: that of the first one, with the commands of the others in ``other_runs``."""
    first, *others = found
    config = dict(first.config)
    made = {name: config[name] for name in ORIGIN if name in config}
    told: list[dict[str, Any]] = list(config.get("other_runs", []))
    for results in others:
        config = merged(config, results.config)
        told += [*results.config.get("other_runs", []), origin(results.config, results.versions)]
    known = origin(first.config, first.versions)
    unique = [other for position, other in enumerate(told) if other != known and other not in told[:position]]
    return config | made | ({"other_runs": unique} if unique else {})
