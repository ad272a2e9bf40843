"""Peak memory of one kind of training beyond that at the start: ``python -m studies.benchmarks.peak_memory KIND``."""

from __future__ import annotations

import resource
import sys

import torch
import torch.nn.functional as F

from calibrant.bilevel import Unrolled
from studies.benchmarks.engine import bilevel_training, data, mlp, plain_training, problem, torchopt_training

STEPS, SAMPLES = 100, 5000


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def peak() -> float:
    # Not getrusage: its maximum includes the memory of the parent process at the fork.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def main(kind: str) -> float:
    x, y = data(1, SAMPLES + 1000, 20, 5)
    model = mlp(20, 256, 5)
    # Warm up the libraries' own buffers on a tiny problem, so that they are not counted.
    F.cross_entropy(mlp(20, 8, 5)(x[:50]), y[:50]).backward()
    if kind == "torchopt":
        import torchopt  # noqa: F401
    if kind == "plain":
        train = plain_training(model, x[:SAMPLES], y[:SAMPLES])
    elif kind == "torchopt":
        train = torchopt_training(model, x, y, SAMPLES, window=STEPS)
    else:
        memory, _, traced = kind.partition(", ")
        one = problem(model, x, y, SAMPLES)
        train = bilevel_training(one, Unrolled(STEPS, memory=memory), "trace" if traced else None)
    before = resident()
    train(STEPS)
    return peak() - before


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(main(sys.argv[1]))
