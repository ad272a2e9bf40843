"""The measuring tools of the benchmarks: medians of interleaved repeats, and records with a target."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrant.report import machine, versions
from studies.report import Column, Record, read_results, to_markdown, write_results

RESULTS = Path("results/bench.json")


def record(name: str, value: float, target: float, **details: Any) -> Record:
    """Return the record of one claim, which holds if ``value`` is at most ``target``."""
    return {"name": name, "value": value, "target": target, "holds": bool(value <= target), **details}


def in_turn(
    jobs: dict[str, Callable[[], Any]],
    *,
    repeats: int,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each repeat of each job. Jobs take turns, so that a slow moment affects all of them."""
    for job in jobs.values():
        for _ in range(warmups):
            job()
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            begin = clock()
            job()
            seconds[name].append(clock() - begin)
    return seconds


def medians(jobs: dict[str, Callable[[], Any]], **options: Any) -> dict[str, float]:
    """Return the median seconds of each job; options as in `in_turn`."""
    return {name: statistics.median(values) for name, values in in_turn(jobs, **options).items()}


def megabytes(field: str) -> float:
    """Return memory of this process: "VmRSS", what it holds now, or "VmHWM", the most that it has held."""
    # Not getrusage: its maximum includes the memory of the parent process at the fork.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def in_process(module: str, *words: str, **environment: str) -> Any:
    """Run a module in a separate process, and return the JSON of the last line that it prints."""
    call = [sys.executable, "-m", f"studies.benchmarks.{module}", *words]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=os.environ | environment)
    return json.loads(done.stdout.splitlines()[-1])


def print_records(parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], list[Record]]) -> None:
    """Measure what the command line asks for, add the records to the result file, and print them as JSON."""
    parser.add_argument("--out", type=Path, default=RESULTS, help="the result file")
    parser.add_argument("--print-only", action="store_true", help="do not write to the result file")
    arguments = parser.parse_args()
    records = measure(arguments)
    if not arguments.print_only:
        write(arguments.out, records)
    print(json.dumps(records))


def write(path: Path, records: list[Record]) -> None:
    """Write a result file; its existing records with other names are kept, with the machine they came from."""
    stamped = [{**r, "machine": machine(), "versions": versions()} for r in records]
    kept = []
    if path.exists():
        fresh = {r["name"] for r in records}
        kept = [r for r in read_results(path).records if r["name"] not in fresh]
    write_results(path, {"command": "python -m studies.benchmarks"}, kept + stamped)


def show(records: list[Record]) -> str:
    """Return the records as a table."""
    rows = [[r["name"], r["value"], r["target"], r["holds"], r.get("note")] for r in records]
    return to_markdown(["what", *(Column(name, digits=5) for name in ("measured", "target")), "holds", "note"], rows)


def markdown(records: list[Record]) -> str:
    """Return the records as a Markdown table; a group with many rows (names like ``group/case``) is summarised."""
    rows = ["| what | measured | target |", "|---|---|---|"]
    many: dict[str, list[bool]] = {}
    for r in records:
        group = r["name"].partition("/")[0]
        if r["value"] is None:
            continue
        if group == "posthoc":
            many.setdefault(group, []).append(r["holds"])
        else:
            rows.append(f"| {r['name']} | {r['value']:.3g} | ≤ {r['target']:g} |")
    claim = "cases where held-out NLL is not shown worse than the best peer's"
    rows += [f"| {group}: {claim} | {sum(h)} | of {len(h)} |" for group, h in many.items()]
    return "\n".join(rows)
