"""Time of `ece` and `smooth_ece` on ten million predictions, compared with torchmetrics and relplot; their memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from calibrant.metrics import ece, smooth_ece
from studies.benchmarks.harness import Record, in_turn, record
from studies.common.runs import Meter

N = 10_000_000


def sample(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Over-confident predictions, none at exactly 1, because the other libraries' results are wrong there."""
    generator = torch.Generator().manual_seed(seed)
    confidence = 1 - 0.9 * torch.rand(N, generator=generator) ** 3 - 1e-3
    correct = torch.rand(N, generator=generator) < 0.95 * confidence
    return confidence, correct


def compared(name: str, target: float, ours: Callable[[], float], theirs: Callable[[], float], repeats: int) -> Record:
    """The record of one metric beside that of another library."""
    peer = name.partition(" time over ")[2]
    results = {"result": ours(), "peer_result": theirs()}
    times = in_turn({"ours": ours, "theirs": theirs}, repeats=repeats, warmups=0)
    ratio = statistics.median(times["ours"]) / statistics.median(times["theirs"])
    seconds = {"seconds": times["ours"], "peer_seconds": times["theirs"]}
    return record(
        f"metrics/{name}", ratio, target, n=N, peer=peer, **seconds, **results, threads=torch.get_num_threads()
    )


def extra_memory(metric: Callable[..., Any], confidence: torch.Tensor, correct: torch.Tensor) -> float:
    """Return the peak resident memory of the call beyond that before it, in MB."""
    metric(confidence=confidence[:1000], correct=correct[:1000])  # load code and thread pools
    meter = Meter()
    with meter([0]):
        metric(confidence=confidence, correct=correct)
    return (meter.costs[0].peak_memory or 0) / 2**20


def run() -> list[Record]:
    """Measure memory, and then times: blocks freed by a timing run stay resident and would hide the memory."""
    import relplot
    from torchmetrics.functional.classification import binary_calibration_error

    confidence, correct = sample()
    size = (confidence.nbytes + correct.nbytes) / 2**20
    memory = [
        record(
            f"metrics/{name} memory beyond the input, MB",
            extra_memory(metric, confidence, correct),
            64.0,
            n=N,
            input_mb=size,
        )
        for name, metric in (("ece", ece), ("smooth_ece", smooth_ece))
    ]
    target, array, hits = correct.long(), confidence.double().numpy(), correct.double().numpy()
    times = [
        compared(
            "ece time over torchmetrics",
            0.5,
            lambda: float(ece(confidence=confidence, correct=correct)),
            # without its argument checks, which is faster; ours are always on
            lambda: binary_calibration_error(confidence, target, n_bins=15, validate_args=False).item(),
            5,
        ),
        compared(
            "smooth_ece time over relplot",
            0.2,
            lambda: float(smooth_ece(confidence=array, correct=hits)),
            lambda: float(relplot.smECE(array, hits)),
            3,
        ),
    ]
    return times + memory
