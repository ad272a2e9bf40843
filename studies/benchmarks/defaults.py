"""Held-out NLL of `calibrant.fit` with its defaults, compared with plain training, on digits and other small data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import calibrant
from calibrant.methods import Calibrated, Samples, Task, default_method
from calibrant.methods.fit.defaults import BEST, PLAIN
from calibrant.metrics import nll
from calibrant.models import small_cnn
from studies.benchmarks.harness import Record, record

SEEDS, TRAIN, VAL = 5, 700, 300
LARGE_SEEDS, SIZES = 3, (4500, 900, 3000)
Pair = tuple[torch.Tensor, torch.Tensor]


def run() -> list[Record]:
    """Measure the default for few and for many samples."""
    return [small(), large()]


def small() -> Record:
    """Compare the default with plain training on the training part, and on training and validation part."""
    inputs, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(inputs.reshape(-1, 1, 8, 8) / 16, dtype=torch.float32), torch.tensor(labels)
    losses: dict[str, list[float]] = {"default": [], "plain": [], "plain on all labels": []}
    seconds = dict.fromkeys(losses, 0.0)
    chosen = ""
    for seed in range(SEEDS):
        order = torch.tensor(np.random.default_rng(seed).permutation(len(x)))
        cut = np.cumsum([0, TRAIN, VAL, len(x) - TRAIN - VAL])
        train, val, test = ((x[order[a:b]], y[order[a:b]]) for a, b in itertools.pairwise(cut))
        both = tuple(torch.cat(parts) for parts in zip(train, val, strict=True))
        model = small_cnn(10, widths=(32, 64), seed=seed)
        chosen = repr(default_method(model, Task(Samples(*train), Samples(*val), 10, seed, model)))
        jobs = {
            "default": lambda m=model, t=train, v=val, s=seed: calibrant.fit(m, t, v, seed=s),
            "plain": lambda m=model, t=train, s=seed: calibrant.fit(m, t, method=PLAIN, seed=s),
            "plain on all labels": lambda m=model, t=both, s=seed: calibrant.fit(m, t, method=PLAIN, seed=s),
        }
        for name, job in jobs.items():
            begin = time.perf_counter()
            fitted = job()
            seconds[name] += time.perf_counter() - begin
            losses[name].append(float(nll(fitted.probs(test[0]), test[1])))
    worst = max(a / min(b, c) for a, b, c in zip(*losses.values(), strict=True))
    return record(
        "calibrant.fit's default on digits, small CNN, NLL / the better plain training's, worst of five seeds",
        worst,
        1.0,
        nll={k: [round(v, 4) for v in values] for k, values in losses.items()},
        seconds={k: round(v / SEEDS, 1) for k, v in seconds.items()},
        method=chosen,
    )


def large() -> Record:
    """Compare the default for many samples with plain training, without and with a temperature."""
    stopped = Calibrated("temperature", BEST)
    methods = {"default": None, "plain": PLAIN, "plain, best state, temperature": stopped}
    found: dict[str, dict[str, list[float]]] = {}
    seconds = dict.fromkeys(methods, 0.0)
    for name, (draw, model) in LARGE.items():
        found[name] = {key: [] for key in methods}
        for seed in range(LARGE_SEEDS):
            train, val, test = draw(seed)
            for key, method in methods.items():
                begin = time.perf_counter()
                fitted = calibrant.fit(model(seed), train, val, method=method, seed=seed)
                seconds[key] += time.perf_counter() - begin
                found[name][key].append(float(nll(fitted.probs(test[0]), test[1])))
    ratios = {name: _worst(own["default"], own["plain"]) for name, own in found.items()}
    return record(
        "calibrant.fit's default on 4,500 samples (rows, sequences, digits), NLL / plain training's, worst seed",
        max(ratios.values()),
        1.0,
        nll={name: {k: [round(v, 4) for v in values] for k, values in own.items()} for name, own in found.items()},
        worst={name: round(value, 3) for name, value in ratios.items()},
        seconds={k: round(v / (LARGE_SEEDS * len(LARGE)), 1) for k, v in seconds.items()},
    )


def _worst(own: list[float], other: list[float]) -> float:
    return max(a / b for a, b in zip(own, other, strict=True))


def rows(seed: int) -> list[Pair]:
    """Twenty numbers; the class is drawn from a softmax."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))

    def draw(count: int) -> Pair:
        x = torch.randn(count, 20, generator=generator)
        noise = -torch.log(-torch.log(torch.rand(count, 4, generator=generator)))
        return x, (2 * torch.tanh(x @ weights) + x[:, :4] * x[:, 4:8] + noise).argmax(1)

    return [draw(count) for count in SIZES]


def sequences(seed: int) -> list[Pair]:
    """Eight pairs of numbers; the class depends on the sum of their products plus noise."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Pair:
        x = torch.randn(count, 8, 2, generator=generator)
        total = (x[..., 0] * x[..., 1]).sum(1) + 0.8 * torch.randn(count, generator=generator)
        return x, torch.bucketize(total, torch.tensor([-1.0, 1.0]))

    return [draw(count) for count in SIZES]


def noisy_digits(seed: int) -> list[Pair]:
    """scikit-learn's digits, each several times, shifted by a pixel and with noise. No image is in two parts."""
    inputs, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(inputs.reshape(-1, 1, 8, 8) / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.tensor(np.random.default_rng(seed).permutation(len(x)))
    generator = torch.Generator().manual_seed(seed)

    every = torch.stack([torch.roll(x, (a, b), (2, 3)) for a, b in itertools.product((-1, 0, 1), repeat=2)])

    def draw(chosen: torch.Tensor, copies: int) -> Pair:
        rows = chosen.repeat(copies)
        moved = every[torch.randint(0, len(every), (len(rows),), generator=generator), rows]
        return moved + 0.4 * torch.randn(moved.shape, generator=generator), y[rows]

    return [draw(chosen, copies) for chosen, copies in zip(order.split([900, 300, 597]), (5, 3, 4), strict=True)]


def perceptron(seed: int) -> nn.Module:
    """Two hidden layers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


class Recurrent(nn.Module):
    """An LSTM and a linear layer on its last state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.lstm, self.fc = nn.LSTM(2, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


LARGE: dict[str, tuple[Callable[[int], list[Pair]], Callable[[int], nn.Module]]] = {
    "rows, perceptron": (rows, perceptron),
    "sequences, LSTM": (sequences, Recurrent),
    "digits, small CNN": (noisy_digits, lambda seed: small_cnn(10, widths=(16, 32), seed=seed)),
}
