"""`--dry-run`: list the runs of a command and whether they are done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.base.words import count
from studies.common.keys import Key, name_of
from studies.report import Record

STATES = {
    "done": "done",
    "failed": "failed",
    "changed": "changed (data, settings or code)",
    "missing": "missing",
}
"""States of a run, and their words in the summary.

A failed run is stored, and is not repeated without --fresh. A changed run will be repeated.
"""


def list_runs(keys: Sequence[Key], records: Sequence[Record], axes: Sequence[str]) -> str:
    """One line for each planned run, in order, and a summary; ``records`` are the stored runs."""
    stored = {name_of([(name, record[name]) for name in axes if name in record]): record for record in records}
    states = [(key, state(key, stored.get(key.name))) for key in keys]
    number = Counter(of for _, of in states)
    summary = ", ".join(f"{number[of]:,} {words}" for of, words in STATES.items() if number[of])
    lines = [f"{of:<8} {described(key)}" for key, of in states]
    return "\n".join([*lines, f"{count(len(keys), 'run')}: {summary or 'nothing to do'}."])


def described(key: Key) -> str:
    """The fields of a run in words: "bac, bo4sc, seed 3"."""
    fields = [(name, value) for name, value in key.fields if value is not None]
    return ", ".join(value if isinstance(value, str) else f"{name} {value}" for name, value in fields)


def state(key: Key, record: Mapping[str, Any] | None) -> str:
    """The state of a planned run, a name of ``STATES``."""
    if record is None:
        return "missing"
    if not key.matches(record):
        return "changed"
    return "failed" if record.get("failure") else "done"
