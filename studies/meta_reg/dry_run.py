"""`--dry-run`: list the runs of a command and whether they are done, without starting or writing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.report.results import Record
from studies.common.contents import KINDS
from studies.common.keys import Key, name_of
from studies.common.shared import count
from studies.meta_reg.data import DATASETS

STATES = {
    "done": "done",
    "failed": "failed",
    "changed": "changed (data, settings or code)",
    "missing": "missing",
}
"""States of a run, and their words in the summary.

A failed run is stored, and is not repeated without --fresh. A changed run will be repeated.
"""


def list_runs(keys: Sequence[Key], records: Sequence[Record], experiment: str) -> str:
    """One line for each planned run, in order, and a summary; ``records`` are the stored runs."""
    identity = KINDS[experiment].identity
    stored = {name_of([(name, record[name]) for name in identity if name in record]): record for record in records}
    found = [(key, state(key, stored.get(key.name))) for key in keys]
    number = Counter(of for _, of in found)
    summary = ", ".join(f"{number[of]} {words}" for of, words in STATES.items() if number[of])
    lines = [f"{of:<8} {DATASETS[key['dataset']].title}, {key['method']}, seed {key['seed']}" for key, of in found]
    return "\n".join([*lines, f"{count(len(keys), 'run')}: {summary}."])


def state(key: Key, record: Mapping[str, Any] | None) -> str:
    """The state of a planned run, a name of ``STATES``."""
    if record is None:
        return "missing"
    if not key.matches(record):
        return "changed"
    return "failed" if record.get("failure") else "done"
