"""1,248 bilevel runs as one batch on a GPU: 1,200 Adam steps each, exact hypergradients through T = 20."""

from __future__ import annotations

import time

import torch

from calibrant.bilevel import SGD, Adam, Population, Unrolled, solve
from studies.benchmarks.engine import ETA, LR, data, mlp, problem
from studies.benchmarks.harness import Record, record

MEMBERS, STEPS, WINDOW = 1248, 1200, 20


def run(compile: str = "trace", members: int = MEMBERS) -> list[Record]:
    if not torch.cuda.is_available():
        return []
    begin = time.perf_counter()
    problems = [problem(mlp(2, 64, 5).cuda(), *data(seed, 1000, 2, 5, "cuda"), 700) for seed in range(members)]
    population = Population(problems)
    torch.cuda.synchronize()
    building = time.perf_counter() - begin

    def whole(outer_steps: int) -> tuple[float, float]:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        rates = torch.linspace(0.5, 1.5, members, device="cuda")
        solution = solve(
            population,
            hypergradient=Unrolled(WINDOW),
            inner_optimizer=Adam(LR * rates),
            outer_optimizer=SGD(ETA * rates),
            outer_steps=outer_steps,
            compile=compile,
        )
        torch.cuda.synchronize()
        assert not solution.failures
        return time.perf_counter() - begin, solution.compile_seconds

    whole(1)
    torch.cuda.reset_peak_memory_stats()
    seconds, compiling = whole(STEPS // WINDOW)
    return [
        record(
            f"{members:,} runs x {STEPS:,} Adam steps, exact T = {WINDOW}, MLP 2-64-64-5, 700 points, one GPU, seconds",
            seconds,
            12.0,
            compile=compile,
            of_which_tracing_seconds=round(compiling, 2),
            building_seconds=round(building, 2),
            peak_gigabytes=round(torch.cuda.max_memory_allocated() / 2**30, 2),
        )
    ]
