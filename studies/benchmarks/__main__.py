"""Run groups of benchmarks, print a table, and write ``results/bench.json``.

``python -m studies.benchmarks [GROUP …]`` runs some of them; default: all. Groups that are not run keep their records,
so a record from a GPU machine stays when the others are measured again.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from studies.benchmarks.harness import RESULTS, markdown, show, write
from studies.report import read_results, write_results

GROUPS = (
    "classifiers",
    "engine",
    "gpu",
    "large",
    "metrics",
    "networks",
    "pool",
    "posthoc",
    "reproduce",
    "wide",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="which groups to run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--merge", type=Path, help="import the records of another result file instead of running")
    parser.add_argument("--markdown", action="store_true", help="print the stored records as a Markdown table")
    arguments = parser.parse_args()
    if arguments.markdown:
        print(markdown(json.loads(arguments.out.read_text())["records"]))
        return
    if arguments.merge:
        other, target = read_results(arguments.merge), read_results(arguments.out)
        names = {r["name"] for r in other.records}
        kept = [r for r in target.records if r["name"] not in names]
        write_results(arguments.out, target.config, kept + other.records)
        print(show(other.records))
        return
    for group in arguments.groups or GROUPS:
        records = importlib.import_module(f"studies.benchmarks.{group}").run()
        if records:
            write(arguments.out, records)
            print(f"\n{group}\n{show(records)}", flush=True)


if __name__ == "__main__":
    main()
