"""Time of `ece` and `smooth_ece` on ten million predictions, compared with torchmetrics and relplot."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calibrant.metrics import ece, smooth_ece

N = 10_000_000


def _sample(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Over-confident predictions, none at exactly 1, because the other libraries' results are wrong there."""
    generator = torch.Generator().manual_seed(seed)
    confidence = 1 - 0.9 * torch.rand(N, generator=generator) ** 3 - 1e-3
    correct = torch.rand(N, generator=generator) < 0.95 * confidence
    return confidence, correct


def _side_by_side(
    ours: Callable[[], float], theirs: Callable[[], float], repeats: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of each, measured in turn so that a busy machine slows both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, record in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            function()
            record.append(time.perf_counter() - start)
    return times


def _record(
    name: str,
    target: float,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    peer: str,
    repeats: int,
) -> dict[str, Any]:
    value, reference = ours(), theirs()
    our_times, their_times = _side_by_side(ours, theirs, repeats)
    ratio = statistics.median(our_times) / statistics.median(their_times)
    return {
        "name": name,
        "value": ratio,
        "target": target,
        "holds": ratio <= target,
        "n": N,
        "peer": peer,
        "seconds": our_times,
        "peer_seconds": their_times,
        "result": value,
        "peer_result": reference,
        "threads": torch.get_num_threads(),
    }


def _extra_memory(metric: Callable[..., Any], confidence: torch.Tensor, correct: torch.Tensor) -> float | None:
    """Return the peak resident memory of the call beyond that before it, in MB; None if /proc is missing."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    metric(confidence=confidence[:1000], correct=correct[:1000])  # load code and thread pools
    reset.write_text("5")  # reset the peak to the current size

    def read(field: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1])

    before = read("VmRSS")
    metric(confidence=confidence, correct=correct)
    return max(0, read("VmHWM") - before) / 1024


def _memory_records(confidence: torch.Tensor, correct: torch.Tensor) -> list[dict[str, Any]]:
    records = []
    for name, function in (("ece", ece), ("smooth_ece", smooth_ece)):
        extra = _extra_memory(function, confidence, correct)
        if extra is None:
            continue
        records.append(
            {
                "name": f"metrics/{name} memory beyond the input, MB",
                "value": extra,
                "target": 64.0,
                "holds": extra <= 64.0,
                "n": N,
                "input_mb": (confidence.nbytes + correct.nbytes) / 2**20,
            }
        )
    return records


def run() -> list[dict[str, Any]]:
    import relplot
    from torchmetrics.functional.classification import binary_calibration_error

    confidence, correct = _sample()
    # memory first: blocks freed by a timing run stay resident and would hide it
    memory = _memory_records(confidence, correct)
    target, array, hits = correct.long(), confidence.double().numpy(), correct.double().numpy()
    records = [
        _record(
            "metrics/ece time over torchmetrics",
            0.5,
            lambda: float(ece(confidence=confidence, correct=correct)),
            # without its argument checks, which is faster; ours are always on
            lambda: binary_calibration_error(confidence, target, n_bins=15, validate_args=False).item(),
            "torchmetrics",
            5,
        ),
        _record(
            "metrics/smooth_ece time over relplot",
            0.2,
            lambda: float(smooth_ece(confidence=array, correct=hits)),
            lambda: float(relplot.smECE(array, hits)),
            "relplot",
            3,
        ),
    ]
    return records + memory


if __name__ == "__main__":
    for record in run():
        print(record)
