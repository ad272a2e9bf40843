"""`--dry-run`: list the runs of a command and whether they are done."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.base.words import count, duration
from studies.common.commands import experiment_of
from studies.common.keys import Key, name_of
from studies.report import Record, read_results

STATES = {
    "done": "done",
    "failed": "failed",
    "changed": "changed (data, settings or code)",
    "missing": "missing",
}
"""States of a run, and their words in the summary.

A failed run is stored, and is not repeated without --fresh. A changed run will be repeated.
"""
MEASURED = Path(__file__).parents[2] / "results"
"""The committed results, whose times serve for an estimate."""


def list_runs(keys: Sequence[Key], records: Sequence[Record], experiment: str, axes: Sequence[str]) -> str:
    """One line for each planned run, in order, a summary, and an estimate; ``records`` are the stored runs."""
    stored = {name_of([(name, record[name]) for name in axes if name in record]): record for record in records}
    states = [(key, state(key, stored.get(key.name))) for key in keys]
    number = Counter(of for _, of in states)
    summary = ", ".join(f"{number[of]:,} {words}" for of, words in STATES.items() if number[of])
    lines = [f"{of:<8} {described(key)}" for key, of in states]
    time = estimate([key for key, of in states if of in ("changed", "missing")], records, experiment)
    return "\n".join([*lines, f"{count(len(keys), 'run')}: {summary or 'nothing to do'}.", *([time] if time else [])])


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


def estimate(keys: Sequence[Key], records: Sequence[Record], experiment: str) -> str:
    """How long runs will take, from the times of the same runs with other seeds; "" if none of them was timed.

    The times are those of the stored runs, or of the committed results that have most of these runs.
    """
    best, known = "", 0
    for source, timed in (("the stored runs", records), *committed(experiment)):
        times: dict[Hashable, list[float]] = defaultdict(list)
        for record in timed:
            if isinstance(record.get("seconds"), int | float):
                times[_apart_from_seed(record, keys)].append(record["seconds"])
        means = [sum(own) / len(own) for key in keys if (own := times.get(_apart_from_seed(dict(key.fields), keys)))]
        if len(means) > known:
            known, part = len(means), "" if len(means) == len(keys) else f" for {len(means):,} of them"
            best = f"The runs to make take about {duration(sum(means))}{part}, by the times of {source}."
    return best


def _apart_from_seed(fields: Mapping[str, Any], keys: Sequence[Key]) -> Hashable:
    return tuple(fields.get(name) for name, _ in keys[0].fields if name != "seed") if keys else ()


def committed(experiment: str) -> Iterator[tuple[str, Sequence[Record]]]:
    """The committed result files of an experiment: their names and records."""
    for path in sorted(MEASURED.glob("*.json")):
        try:
            results = read_results(path)
        except ValueError:  # another kind of file, such as figure data
            continue
        if experiment_of(results.config) == experiment:
            yield f"results/{path.name} ({results.config.get('device', 'cpu')})", results.records
