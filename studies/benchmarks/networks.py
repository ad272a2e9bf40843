"""The cost of training a ResNet-18 on the engine, compared with an ordinary PyTorch loop on the same data.

"torch" is that ordinary loop: ``zero_grad``, forward, ``backward``, ``step`` with ``torch.optim.SGD``. On a GPU both
run under bfloat16 autocast, channels last, compiled, with images, augmentation and batches on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel import (
    CG,
    SGD,
    Adam,
    Bilevel,
    FocalWithGamma,
    GammaNet,
    Implicit,
    OneStep,
    Plain,
    Run,
    SampleWeights,
)
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.data import TensorStream
from calibrant.data.vision import CropAndFlip, Normalise
from calibrant.models import resnet18, small_cnn
from studies.benchmarks.harness import Record, medians, record
from studies.common.runs import threads_limited_to

AUGMENT, NORMALISE = CropAndFlip(), Normalise((0.5,) * 3, (0.25,) * 3)
GRAPHS = "torch, reduce-overhead"
"""The loop with ``torch.compile(mode="reduce-overhead")``, which replays CUDA graphs."""
RATE = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}


def images(count: int, device: str) -> tuple[Tensor, Tensor]:
    """Random images; the time of a step does not depend on their content."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return pixels.to(device), torch.randint(0, 10, (count,), generator=generator).to(device)


def torch_loop(
    model: nn.Module, inputs: Tensor, labels: Tensor, size: int, *, gpu: bool, mode: str | None = None
) -> Callable[[int], None]:
    """An ordinary loop over shuffled, augmented batches. ``mode`` is that of ``torch.compile`` on a GPU."""
    if gpu:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **RATE)
    run = torch.compile(model, mode=mode) if gpu else model
    generator = torch.Generator(inputs.device).manual_seed(0)

    def train(steps: int) -> None:
        order = torch.randperm(len(inputs), generator=generator, device=inputs.device)
        for step in range(steps):
            rows = order[(step * size) % len(inputs) :][:size]
            x = NORMALISE(AUGMENT(inputs[rows], generator))
            optimizer.zero_grad()
            if gpu:
                x = x.contiguous(memory_format=torch.channels_last)
                with torch.autocast("cuda", torch.bfloat16):
                    logits = run(x)
                F.cross_entropy(logits.float(), labels[rows]).backward()
            else:
                F.cross_entropy(run(x), labels[rows]).backward()
            optimizer.step()

    return train


def engine_loop(
    outer: str,
    hypergradient: Any,
    inputs: Tensor,
    labels: Tensor,
    size: int,
    build: Callable[[int], Any] = resnet18,
    **settings: Any,
) -> Callable[[int], None]:
    """The same on the engine, with outer variables and a hypergradient."""
    model, cut = build(10).to(inputs.device), len(inputs) * 4 // 5
    stream = {"prepare": NORMALISE, "drop_last": True}
    train = TensorStream(inputs[:cut], labels[:cut], batch_size=size, augment=AUGMENT, **stream)
    val = TensorStream(inputs[cut:], labels[cut:], batch_size=size, **stream)
    variables = {"none": None, "gamma": GammaNet(model.fc.in_features, 10), "weights": SampleWeights(cut)}[outer]
    loss = {"inner_loss": FocalWithGamma()} if outer == "gamma" else {}
    compile = settings.pop("compile", None)
    problem = Bilevel(model, variables, train=train, val=val if variables else None, **loss, **settings)
    rates = Adam(0.02) if variables else None
    run = Run(problem, hypergradient, SGD(0.01, **RATE), rates, 10**6, compile=compile)

    def steps(count: int) -> None:
        for _ in range(count // hypergradient.steps):
            outer_step(run)

    steps.run = run  # type: ignore[attr-defined]
    return steps


def side_by_side(jobs: dict[str, Callable[[int], None]], steps: int, repeats: int, gpu: bool) -> dict[str, float]:
    """Return the median seconds of a step, of the processor or of the GPU; the jobs take turns."""

    def clock() -> float:
        if not gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    several = {name: partial(job, steps) for name, job in jobs.items()}
    return {name: s / steps for name, s in medians(several, repeats=repeats, warmups=0, clock=clock).items()}


def on_cpu(size: int = 128, repeats: int = 5) -> list[Record]:
    """Measure plain training per step on the CPU."""
    inputs, labels = images(5 * size, "cpu")
    jobs = {
        "torch": torch_loop(resnet18(10), inputs, labels, size, gpu=False),
        "plain": engine_loop("none", Plain(1), inputs, labels, size),
    }
    for job in jobs.values():
        job(1)
    seconds = side_by_side(jobs, 1, repeats, gpu=False)
    return [
        record(
            f"ResNet-18, batch {size}, processor, Plain, per step / torch",
            seconds["plain"] / seconds["torch"],
            1.10,
            milliseconds={k: round(1000 * s, 1) for k, s in seconds.items()},
            threads=torch.get_num_threads(),
        )
    ]


def lookahead_on_cpu(size: int = 128, steps: int = 20, repeats: int = 15) -> list[Record]:
    """Measure a look-ahead step of the head before every step of a small network, in one thread."""

    def build(classes: int) -> nn.Module:
        return small_cnn(classes, channels=3)

    with threads_limited_to(1):
        inputs, labels = images(10 * size, "cpu")
        jobs = {
            "torch": torch_loop(build(10), inputs, labels, size, gpu=False),
            "plain": engine_loop("none", Plain(1), inputs, labels, size, build),
            "one step, head": engine_loop("gamma", OneStep(1, scope="head"), inputs, labels, size, build),
        }
        for job in jobs.values():
            job(3)
        seconds = side_by_side(jobs, steps, repeats, gpu=False)
    return [
        record(
            f"small CNN, batch {size}, one processor thread, one step, head, every step, per step / torch",
            seconds["one step, head"] / seconds["torch"],
            1.4,
            milliseconds={k: round(1000 * s, 2) for k, s in seconds.items()},
        )
    ]


def on_gpu(size: int = 256, steps: int = 160, repeats: int = 5) -> list[Record]:
    """Measure plain and bilevel training per step on a GPU."""
    if not torch.cuda.is_available():
        return []
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    inputs, labels = images(50_000, "cuda")
    settings = {"autocast": torch.bfloat16, "channels_last": True, "compile": "inductor"}

    def engine(outer: str, hypergradient: Any) -> Callable[[int], None]:
        return engine_loop(outer, hypergradient, inputs, labels, size, **settings)

    head = {"scope": "head"}
    makers: dict[str, Callable[[], Callable[[int], None]]] = {
        "torch": lambda: torch_loop(resnet18(10).cuda(), inputs, labels, size, gpu=True),
        GRAPHS: lambda: torch_loop(resnet18(10).cuda(), inputs, labels, size, gpu=True, mode="reduce-overhead"),
        "plain": lambda: engine("none", Plain(4)),
        "one step, head, every step": lambda: engine("gamma", OneStep(1, **head)),
        "one step, head, every 4th": lambda: engine("gamma", OneStep(4, **head)),
        "solved head, every 4th": lambda: engine("gamma", Implicit(4, **head, solve=CG(8, quiet=True))),
        "one step, all, every 4th": lambda: engine("weights", OneStep(4)),
    }
    jobs, first, peak = {}, {}, {}
    for name, make in makers.items():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held, begin = torch.cuda.memory_allocated(), time.perf_counter()
        jobs[name] = make()
        jobs[name](8)
        torch.cuda.synchronize()
        first[name] = round(time.perf_counter() - begin, 1)
        torch.cuda.reset_peak_memory_stats()
        jobs[name](16)
        torch.cuda.synchronize()
        peak[name] = torch.cuda.max_memory_allocated() - held
    seconds = side_by_side(jobs, steps, repeats, gpu=True)
    common = {
        "milliseconds": {k: round(1000 * s, 3) for k, s in seconds.items()},
        "first_steps_seconds": first,
        "peak_gigabytes": {k: round(p / 2**30, 3) for k, p in peak.items()},
    }
    where = f"ResNet-18, batch {size}, one GPU, bfloat16, compiled"

    def ratio(name: str, over: str, target: float) -> Record:
        return record(f"{where}, {name}, per step / {over}", seconds[name] / seconds[over], target)

    limits = {
        "one step, head, every step": 1.4,
        "one step, head, every 4th": 1.15,
        "solved head, every 4th": 1.25,
        "one step, all, every 4th": 2.0,
    }
    return [
        ratio("plain", "torch", 1.05) | common,
        ratio("plain", GRAPHS, 1.10),
        record(f"{where}, plain, an epoch of 50,000 images, seconds", seconds["plain"] * 50_000 / size, 1.8),
        *(ratio(name, "plain", target) for name, target in limits.items()),
        record(f"{where}, plain, peak memory / torch", peak["plain"] / peak["torch"], 1.2),
    ]


def run() -> list[Record]:
    return on_gpu() or [*on_cpu(), *lookahead_on_cpu()]
