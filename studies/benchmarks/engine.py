"""The cost of exact hypergradients, compared with an ordinary eager PyTorch training loop and with torchopt.

"Plain" is that ordinary loop: ``zero_grad``, forward, ``backward``, ``step`` with ``torch.optim.Adam``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel import SGD, Adam, Bilevel, Population, Run, SampleWeights, Truncated, Unrolled, averaged, solve
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.losses import confidence_bce
from studies.benchmarks.harness import Record, in_process, medians, megabytes, record

OUTER_LOSS = averaged(confidence_bce)
LR, ETA, STEPS = 5e-3, 30.0, 10
WINDOW, SAMPLES = 100, 5000
"""Inner steps and samples of the measurements of memory."""
RETURNED = "MALLOC_MMAP_THRESHOLD_=1048576"
"""With this setting glibc returns large blocks to the system when they are freed."""


def mlp(inputs: int, hidden: int, classes: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def data(seed: int, samples: int, inputs: int, classes: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, inputs, generator=generator)
    return x.to(device), torch.randint(0, classes, (samples,), generator=generator).to(device)


def problem(model: nn.Module, x: Tensor, y: Tensor, train: int) -> Bilevel:
    return Bilevel(
        model, SampleWeights(train), train=(x[:train], y[:train]), val=(x[train:], y[train:]), outer_loss=OUTER_LOSS
    )


def plain_training(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[int], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return train


def bilevel_training(problem: Bilevel | Population, hypergradient: Truncated, compile: str | None) -> Callable:
    run = Run(problem, hypergradient, Adam(LR), SGD(ETA), 10**9, compile=compile)

    def train(steps: int) -> None:
        for _ in range(steps // hypergradient.steps):
            outer_step(run)

    train.run = run  # type: ignore[attr-defined]
    return train


def torchopt_training(model: nn.Module, x: Tensor, y: Tensor, train: int, window: int = STEPS) -> Callable[[int], None]:
    import torchopt

    weights = torch.ones(train, requires_grad=True)
    optimizer = torchopt.MetaAdam(model, lr=LR, moment_requires_grad=True, eps_root=1e-16)

    def run(steps: int) -> None:
        for _ in range(steps // window):
            for _ in range(window):
                losses = F.cross_entropy(model(x[:train]), y[:train], reduction="none")
                optimizer.step((weights * losses).mean())
            outer = confidence_bce(model(x[train:]), y[train:]).mean()
            (gradient,) = torch.autograd.grad(outer, weights)
            with torch.no_grad():
                weights.sub_(ETA * gradient).clamp_(0, 1)
            torchopt.stop_gradient(model)
            torchopt.stop_gradient(optimizer)

    return run


def compile_seconds(train: Callable) -> float:
    run = train.run  # type: ignore[attr-defined]
    return round(
        sum(getattr(derivatives, "seconds", 0.0) for derivatives in (run.dynamics.derivatives, run.outer_derivatives)),
        2,
    )


def speed(hidden: int, steps: int, repeats: int) -> list[Record]:
    """Measure the cost of an inner step, MLP 2-h-h-2 on 700 points."""
    x, y = data(1, 1000, 2, 2)
    one = problem(mlp(2, hidden, 2), x, y, 700)
    jobs = {
        "plain": plain_training(mlp(2, hidden, 2), x[:700], y[:700]),
        "eager": bilevel_training(one, Unrolled(STEPS), None),
        "traced": bilevel_training(one, Unrolled(STEPS), "trace"),
        "truncated": bilevel_training(one, Truncated(STEPS, 2), None),
        "truncated, traced": bilevel_training(one, Truncated(STEPS, 2), "trace"),
        "torchopt": torchopt_training(mlp(2, hidden, 2), x, y, 700),
    }
    seconds = medians({k: (lambda j=j: j(steps)) for k, j in jobs.items()}, repeats=repeats)
    ratios = {k: round(s / seconds["plain"], 3) for k, s in seconds.items()}
    details = {
        "ratios_to_plain": ratios,
        "plain_microseconds": round(1e6 * seconds["plain"] / steps, 1),
        "tracing_seconds": compile_seconds(jobs["traced"]),
    }
    exact = f"exact Unrolled(10), MLP 2-{hidden}-{hidden}-2, 700 points, traced"
    window = f"Truncated(10, last=2), MLP 2-{hidden}-{hidden}-2, 700 points, eager"
    if hidden <= 64:
        return [record(f"{exact}, per inner step / plain", ratios["traced"], 2.0, **details)]
    return [
        record(f"{exact}, per inner step / torchopt", seconds["traced"] / seconds["torchopt"], 1.0, **details),
        record(f"{window}, per inner step / plain", ratios["truncated"], 1.6, **details),
    ]


def population(members: int = 32, repeats: int = 5) -> list[Record]:
    """Compare a population on the CPU with plain training of one network, per member and step, MLP 2-64-64-5."""
    problems = [problem(mlp(2, 64, 5), *data(seed, 1000, 2, 5), 700) for seed in range(members)]
    x, y = data(0, 1000, 2, 5)
    plain = plain_training(mlp(2, 64, 5), x[:700], y[:700])
    batched = {c: bilevel_training(Population(problems), Unrolled(STEPS), c) for c in (None, "trace")}
    jobs = {"plain": lambda: plain(200)} | {str(c): (lambda b=b: b(STEPS)) for c, b in batched.items()}
    seconds = medians(jobs, repeats=repeats)
    each = {k: s / 200 if k == "plain" else s / STEPS / members for k, s in seconds.items()}
    return [
        record(
            f"population of {members}, exact T = 10, MLP 2-64-64-5, 700 points, traced, per member and step / plain",
            each["trace"] / each["plain"],
            1.5,
            eager_ratio=round(each["None"] / each["plain"], 3),
            plain_microseconds=round(1e6 * each["plain"], 1),
            tracing_seconds=compile_seconds(batched["trace"]),
        )
    ]


def memory() -> list[Record]:
    """Measure peak memory beyond the start, T = 100, n = 5,000, MLP 20-256-256-5, each in a separate process."""
    peaks = {kind: _peak_in_process(kind) for kind in ("plain", "checkpoints", "graphs", "torchopt")}
    peaks |= {f"{kind}, {RETURNED}": _peak_in_process(kind, returned=True) for kind in ("plain", "checkpoints")}
    return [
        record(
            "memory='checkpoints', T = 100, n = 5,000, MLP 20-256-256-5, peak beyond start / plain",
            peaks["checkpoints"] / peaks["plain"],
            2.0,
            megabytes={k: round(p, 1) for k, p in peaks.items()},
        )
    ]


def _peak_in_process(kind: str, returned: bool = False) -> float:
    environment = dict([RETURNED.split("=")]) if returned else {}
    return float(in_process("engine", kind, **environment))


def peak_of_training(kind: str) -> float:
    """Return the peak memory of one kind of training beyond that at its start, in this process."""
    x, y = data(1, SAMPLES + 1000, 20, 5)
    model = mlp(20, 256, 5)
    # Warm up the libraries' own buffers on a tiny problem, so that they are not counted.
    F.cross_entropy(mlp(20, 8, 5)(x[:50]), y[:50]).backward()
    if kind == "torchopt":
        import torchopt  # noqa: F401
    if kind == "plain":
        train = plain_training(model, x[:SAMPLES], y[:SAMPLES])
    elif kind == "torchopt":
        train = torchopt_training(model, x, y, SAMPLES, window=WINDOW)
    else:
        train = bilevel_training(problem(model, x, y, SAMPLES), Unrolled(WINDOW, memory=kind), None)
    before = megabytes("VmRSS")
    train(WINDOW)
    return megabytes("VmHWM") - before


def on_gpu(members: int = 1248, steps: int = 1200, window: int = 20) -> list[Record]:
    """Measure many bilevel runs as one batch on a GPU."""
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
            hypergradient=Unrolled(window),
            inner_optimizer=Adam(LR * rates),
            outer_optimizer=SGD(ETA * rates),
            outer_steps=outer_steps,
            compile="trace",
        )
        torch.cuda.synchronize()
        assert not solution.failures
        return time.perf_counter() - begin, solution.compile_seconds

    whole(1)
    torch.cuda.reset_peak_memory_stats()
    seconds, compiling = whole(steps // window)
    return [
        record(
            f"{members:,} runs x {steps:,} Adam steps, exact T = {window}, MLP 2-64-64-5, 700 points, one GPU, seconds",
            seconds,
            12.0,
            compile="trace",
            of_which_tracing_seconds=round(compiling, 2),
            building_seconds=round(building, 2),
            peak_gigabytes=round(torch.cuda.max_memory_allocated() / 2**30, 2),
        )
    ]


def run() -> list[Record]:
    """Measure on the GPU if there is one, else on the processor."""
    return on_gpu() if torch.cuda.is_available() else [*speed(64, 200, 9), *speed(512, 40, 7), *population(), *memory()]


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(peak_of_training(sys.argv[1]))
