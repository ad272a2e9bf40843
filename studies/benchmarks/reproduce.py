"""Time of the first paper's experiments as a user runs them, from the start of Python to the written report."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import torch

from studies.benchmarks.harness import Record, record


def run() -> list[Record]:
    """Run twenty seeds with a GPU, three without."""
    where, options, target = (
        ("one GPU", ["--seeds", "20"], 60.0) if torch.cuda.is_available() else ("CPU", ["--quick"], 240.0)
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "studies", "reproduce", "bo4sc", *options, "--out", folder]
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
    name = f"python -m studies reproduce bo4sc {' '.join(options)}, {where}, seconds from start to report"
    return [record(name, seconds, target)]
