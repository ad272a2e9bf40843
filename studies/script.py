"""The frame of the studies that are one script each: measure the runs that a result file lacks, and store them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from calibrant.base.words import count
from calibrant.report import machine, versions
from studies.common.shared import in_order, made
from studies.report import Record, Results, read_results, write_results

Run = Mapping[str, Any]
"""The fields that identify a record, such as data set, method and seed."""
VERSION = "1"
"""The version of the code in new records; raise it when a change moves numbers."""


def options(description: str, path: str) -> argparse.ArgumentParser:
    """A parser with the options of every script; ``path`` is the default result file."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(path), help=f"the result file; default: {path}")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--dry-run", action="store_true", help="list the runs that the result file lacks, and stop")
    return parser


def run_missing(
    chosen: argparse.Namespace,
    experiment: str,
    groups: Iterable[Sequence[Run]],
    measure: Callable[[Sequence[Run]], Sequence[Record]],
    order: Mapping[str, Sequence[Any] | None],
) -> list[Record]:
    """Measure the runs that the result file lacks, and return all its records.

    The file is written after each group, so that an interrupted script goes on where it stopped.

    Parameters
    ----------
    chosen : the options that `options` declares
    groups : runs that are measured together
    measure : returns one record for each run of a group; it must be a function of a module
    order : the fields that identify a run, each with its values in the order of the file; None for numbers
    """
    path: Path = chosen.out
    stored = read_results(path) if path.exists() else Results({"experiment": experiment}, versions(), [])
    records = list(stored.records)
    stored_runs = {tuple(record[name] for name in order) for record in records}
    missing = [[run for run in group if tuple(run[name] for name in order) not in stored_runs] for group in groups]
    number = sum(map(len, missing))
    print(f"{count(number, 'run')} to do; {len(records):,} in {path}.", file=sys.stderr)
    if chosen.dry_run:
        for run in (run for group in missing for run in group):
            print("missing:", ", ".join(f"{name} {value}" for name, value in run.items()))
        return records
    if not number:
        return records
    origin = {**made(), "machine": machine()}
    config = origin | stored.config
    if path.exists():
        config["other_runs"] = [*config.get("other_runs", []), {**origin, "versions": versions()}]

    calls = (delayed(measure)(group) for group in missing if group)
    for measured in Parallel(n_jobs=chosen.jobs, return_as="generator_unordered")(calls):
        records = in_order([*records, *({**record, "code": VERSION} for record in measured)], order)
        write_results(path, config, records, stored.versions)
    return records
