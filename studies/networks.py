"""Compare `calibrant.fit` with plain training and a temperature in the same time: ``python -m studies.networks``.

Each network is trained from scratch on few samples, and fine-tuned after a related task. Plain training is Adam with a
one-cycle schedule, at the better of two learning rates by validation NLL. It keeps the state with the lowest validation
NLL and fits a temperature. Both get the same processor time on one thread.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant import metrics
from calibrant.methods.fit.fit import fit
from calibrant.posthoc import make_calibrator
from studies import script
from studies.common.runs import threads_limited_to
from studies.network_tasks import TASKS, Splits, TaskKind, classes_of
from studies.report import Record, to_markdown

STARTS = {"scratch": "from scratch", "tuned": "fine-tuned"}
EPOCHS: dict[str, int | None] = {"scratch": None, "tuned": 15}
"""Epochs of `calibrant.fit`, None for its default; plain training gets the same time."""
REPEATS = {"scratch": 1, "tuned": 3}
"""Trainings of both methods per seed, whose scores are averaged.

Fine-tuning on a few hundred samples is short, and its result depends on the order of the batches: two runs on the same
data differ in NLL. The records hold the NLL of each.
"""
SOURCE_STEPS = 400
RATES = (0.003, 0.001)
"""Peak learning rates of Adam. The time is divided between them, and validation data choose one."""
WARMUP = 0.2
TARGET = 0.01
"""The largest accepted upper end of the paired difference, as a share of the rival's mean NLL."""


def measure(runs: Sequence[script.Run]) -> list[Record]:
    """Return the records of comparisons. Time is CPU time on one thread, which other processes hardly affect."""
    with threads_limited_to(1):
        return [{**run, **compare(TASKS[run["task"]], run["start"], run["seed"])} for run in runs]


def compare(task: TaskKind, start: str, seed: int) -> Record:
    """Return the scores and times of both methods on one draw of a task, averaged over the repeats."""
    with torch.random.fork_rng(devices=[]):
        model, splits = prepared(task, start, seed)
        train, val, test = (task.loader(pair, shuffle=part == "train") for part, pair in splits._asdict().items())
        pairs = [train_both(model, train, val, test, start, seed + 1000 * k) for k in range(REPEATS[start])]
    counts, ours, plain = zip(*pairs, strict=True)
    record: Record = {"networks": sorted(set(counts))}
    for who, each in (("fit", ours), ("plain", plain)):
        record[who] = {name: float(f"{mean(one[name] for one in each):.6g}") for name in each[0]}
        record[who]["nll_of_repeats"] = [one["nll"] for one in each]
    return record


def train_both(
    model: nn.Module, train: Any, val: Any, test: Any, start: str, seed: int
) -> tuple[int, dict[str, float], dict[str, float]]:
    """Train by `calibrant.fit`, and then plainly for the same time.

    Returns the number of networks, and the scores and seconds of both.
    """
    torch.manual_seed(seed)
    began = time.process_time()
    result = fit(model, train, val, epochs=EPOCHS[start], seed=seed)
    seconds = time.process_time() - began
    torch.manual_seed(seed)
    began = time.process_time()
    rival, temperature = train_plain(model, train, val, seconds=seconds)
    rival_seconds = time.process_time() - began
    logits, labels = predict(rival, test)
    return (
        len(result.networks),
        scores(result.probs(test).numpy(), labels) | {"seconds": round(seconds, 2)},
        scores(temperature.predict_proba(logits), labels) | {"seconds": round(rival_seconds, 2)},
    )


def prepared(task: TaskKind, start: str, seed: int) -> tuple[nn.Module, Splits]:
    """Return the initial network and its data; a tuned network has learned the source task and has a new head."""
    splits = task.draw(seed, start)
    classes = classes_of(splits)
    if start != "tuned":
        return task.build(classes, seed), splits
    source = task.draw(seed, "source")
    model = task.build(classes_of(source), seed)
    train_steps(model, task.loader(source.train, shuffle=True), SOURCE_STEPS)
    head = model.get_submodule(task.head)
    assert isinstance(head, nn.Linear)
    setattr(model, task.head, nn.Linear(head.in_features, classes))
    return model, splits


def scores(probs: Any, labels: Any) -> dict[str, float]:
    """Return NLL, accuracy and calibration on the test part."""
    values = {
        "nll": metrics.nll(probs, labels),
        "accuracy": (probs.argmax(1) == labels).mean(),
        "ece15": metrics.ece(probs, labels, 15),
        "smooth_ece": metrics.smooth_ece(probs, labels),
    }
    return {name: float(f"{float(value):.6g}") for name, value in values.items()}


def train_plain(model: nn.Module, train: Iterable[Any], val: Iterable[Any], *, seconds: float) -> tuple[nn.Module, Any]:
    """Train a copy of a network for a given processor time, and return it with its fitted temperature.

    The learning rate rises over the first fifth of the time and then falls to zero along a cosine.
    """
    begin = time.process_time()
    trained = []
    for number, rate in enumerate(RATES, 1):
        twin = copy.deepcopy(model)
        trained.append((*_train_until(twin, train, val, rate, begin + seconds * number / len(RATES)), twin))
    _, state, best = min(trained, key=lambda entry: entry[0])
    best.load_state_dict(state)
    logits, labels = predict(best, val)
    return best, make_calibrator("temperature").fit(logits, labels)


def _train_until(
    model: nn.Module, train: Iterable[Any], val: Iterable[Any], rate: float, end: float
) -> tuple[float, dict[str, Tensor]]:
    """The lowest validation NLL over epochs, and the state that has it."""
    optimizer = torch.optim.Adam(model.parameters())
    begin, best, state = time.process_time(), math.inf, copy.deepcopy(model.state_dict())
    while (now := time.process_time()) < end:
        for batch in train:
            now = time.process_time()
            if now >= end:
                break
            _step(model, optimizer, batch, rate * share_of_peak((now - begin) / (end - begin)))
        logits, labels = predict(model, val)
        loss = float(F.cross_entropy(torch.as_tensor(logits), torch.as_tensor(labels)))
        if loss < best:
            best, state = loss, copy.deepcopy(model.state_dict())
    return best, state


def train_steps(model: nn.Module, train: Iterable[Any], steps: int, rate: float = 0.003) -> None:
    """Train a network in place for a given number of steps, on the source task before fine-tuning."""
    optimizer = torch.optim.Adam(model.parameters())
    done = 0
    while done < steps:
        for batch in train:
            _step(model, optimizer, batch, rate * share_of_peak(done / steps))
            done += 1
            if done == steps:
                break


def share_of_peak(done: float) -> float:
    """Return the learning rate as a share of its peak, after a share ``done`` of the training."""
    if done < WARMUP:
        return 0.04 + 0.96 * done / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (done - WARMUP) / (1 - WARMUP)))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    inputs, labels = split(batch)
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(call(model, inputs), labels).backward()
    optimizer.step()


def predict(model: nn.Module, batches: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits and labels of all batches."""
    model.eval()
    with torch.no_grad():
        parts = [(call(model, inputs).double(), labels) for inputs, labels in map(split, batches)]
    logits, labels = zip(*parts, strict=True)
    return torch.cat(logits).numpy(), torch.cat(labels).numpy()


def split(batch: Any) -> tuple[Any, Tensor]:
    """Return the inputs and labels of a batch that is a pair or a mapping."""
    if isinstance(batch, dict):
        return {k: v for k, v in batch.items() if k != "labels"}, batch["labels"]
    inputs, labels = batch
    return inputs, labels


def call(model: nn.Module, inputs: Any) -> Tensor:
    """Logits."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def table(records: Sequence[Record]) -> str:
    """One row per task and start with the paired difference of NLL, and a sentence that names what is better or worse.

    The difference is that of `calibrant.fit` minus plain training, as a share of the mean of the latter.
    """
    rows = []
    places: dict[str, list[str]] = {"lower": [], "higher": [], "missed": []}
    for (task, start), runs in pd.json_normalize(list(records)).groupby(["task", "start"], sort=False):
        ours, rival = runs["fit.nll"], runs["plain.nll"]
        gap = metrics.mean_interval((ours - rival) / rival.mean())
        shown = f"{gap.value:+.1%} ({gap.low:+.1%} to {gap.high:+.1%})"
        rows.append([task, STARTS[start], len(runs), ours.mean(), rival.mean(), shown])
        judged = {"lower": gap.high < 0, "higher": gap.low > 0, "missed": gap.high > TARGET}
        for verdict in (word for word, holds in judged.items() if holds):
            places[verdict].append(f"{task} ({STARTS[start]})")
    columns = ["NLL, `calibrant.fit`", "NLL, plain"]
    named = {verdict: " and ".join(", ".join(names).rsplit(", ", 1)) or "none" for verdict, names in places.items()}
    return (
        to_markdown(["task", "start", "seeds", *columns, "difference of NLL"], rows)
        + f"\n\nThe NLL of `calibrant.fit` is significantly lower for: {named['lower']}; significantly higher for: "
        f"{named['higher']}. The target is an upper end of the interval of at most {TARGET:+.0%}. It is missed, or "
        f"there are too few seeds to tell, for: {named['missed']}."
    )


def main(words: Sequence[str]) -> None:
    """Measure the comparisons that are not stored, and print the table."""
    parser = script.options(__doc__ or "", "results/networks.json")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds; each redraws the data and the network")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    chosen = parser.parse_args(words)
    runs = [
        [{"task": task, "start": start, "seed": seed}]
        for seed in range(chosen.seeds)
        for task in chosen.tasks
        for start in chosen.starts
    ]
    order = {"task": list(TASKS), "start": list(STARTS), "seed": None}
    records = script.run_missing(chosen, "networks", runs, measure, order)
    print(table(records))


if __name__ == "__main__":
    main(sys.argv[1:])
