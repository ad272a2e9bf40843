"""Make the missing runs of the readings, several at once on one GPU, until the time is up.

``python -m studies.meta_reg.readings_queue --data DIR --work DIR --out DIR --seconds 560``. A run that
the time cuts off keeps its state in the work folder, and the same command continues it. ``--out`` gets one JSON file
and one .npz file of all finished runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.common.shared import made
from studies.meta_reg.readings import BATCH, CLIP, CUT_OFF, DECAY, MOMENTUM, RATE, READINGS
from studies.report import write_results

MARGIN, LEAST = 20.0, 45.0
"""Seconds for the end of a run and for the merged files, and the shortest time left in which a run is started."""


def work_through(methods: Sequence[str], arguments: Sequence[str], work: Path, workers: int, until: float) -> None:
    """Make the runs of ``methods`` that the work folder lacks, ``workers`` at once, and say how each of them ended."""
    missing = [name for name in methods if not (work / f"{name}.json").exists()]
    # Runs that were cut off come first.
    missing.sort(key=lambda name: not (work / "states" / f"{name}.pt").exists())
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    work.mkdir(parents=True, exist_ok=True)
    while running or (missing and time.time() < until - LEAST):
        while missing and len(running) < workers and time.time() < until - LEAST:
            name = missing.pop(0)
            call = [sys.executable, "-m", "studies.meta_reg.readings", name, *arguments]
            with (work / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    [*call, "--out", str(work), "--until", str(until)], stdout=log, stderr=subprocess.STDOUT
                )
            running[name] = process, time.time()
        for name, (process, begin) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                told = (work / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                ended = {0: "finished", CUT_OFF: "cut off"}.get(process.returncode, f"failed:\n{told[-1500:]}")
                print(f"{name}: {ended} after {time.time() - begin:.0f} s", flush=True)
        time.sleep(0.5)


def merge(work: Path, out: Path) -> None:
    """One result file and one file of logits from all finished runs."""
    records: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for name in READINGS:
        if (work / f"{name}.json").exists():
            records.append(json.loads((work / f"{name}.json").read_text(encoding="utf-8")))
            with np.load(work / f"{name}.npz") as stored:
                arrays |= {key if key.endswith("labels") else f"{name}/{key}": stored[key] for key in stored.files}
    sgd = {"batch": BATCH, "learning_rate": RATE, "momentum": MOMENTUM, "weight_decay": DECAY, "clip": CLIP}
    write_results(out / "readings.json", {"experiment": "readings", **sgd, **made()}, records)
    np.savez_compressed(out / "readings-logits.npz", **arrays)  # type: ignore[arg-type]


def main(arguments: Sequence[str]) -> None:
    """The queue of one call; further arguments are those of a run."""
    parser = argparse.ArgumentParser(description="Readings of the second paper, several at once.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=list(READINGS), default=list(READINGS))
    parser.add_argument("--skip", nargs="*", choices=list(READINGS), default=[])
    begin = time.time()
    own, further = parser.parse_known_args(arguments)
    chosen = [name for name in own.methods if name not in own.skip]
    work_through(chosen, further, own.work, own.workers, begin + own.seconds - MARGIN)
    merge(own.work, own.out)


if __name__ == "__main__":
    main(sys.argv[1:])
