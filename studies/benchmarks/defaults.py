"""Held-out NLL of `calibrant.fit` with its defaults, compared with plain training, on digits."""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch
from sklearn.datasets import load_digits

import calibrant
from calibrant.methods import Samples, Task, default_method
from calibrant.methods.fit.defaults import PLAIN
from calibrant.metrics import nll
from calibrant.models import small_cnn
from studies.benchmarks.harness import Record, record

SEEDS, TRAIN, VAL = 5, 700, 300


def run() -> list[Record]:
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
    result = record(
        "calibrant.fit's default on digits, small CNN, NLL / the better plain training's, worst of five seeds",
        worst,
        1.0,
        nll={k: [round(v, 4) for v in values] for k, values in losses.items()},
        seconds={k: round(v / SEEDS, 1) for k, v in seconds.items()},
        method=chosen,
    )
    return [result]
