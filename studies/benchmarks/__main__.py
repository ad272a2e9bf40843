"""Run groups of benchmarks, print a table, and write ``results/bench.json``.

``python -m studies.benchmarks [GROUP …]`` runs some of them; default: all. Groups that are not run keep their records,
so a record from a GPU machine stays when the others are measured again.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from studies.benchmarks.harness import RESULTS, show, write

GROUPS = ("engine", "large", "metrics", "networks", "pool", "posthoc", "reproduce", "wide")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="which groups to run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for group in arguments.groups or GROUPS:
        records = importlib.import_module(f"studies.benchmarks.{group}").run()
        if records:
            write(arguments.out, records)
            print(f"\n{group}\n\n{show(records)}", flush=True)


if __name__ == "__main__":
    main()
