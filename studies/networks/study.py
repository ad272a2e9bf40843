"""`studies bench networks`: compare `calibrant.fit` with plain training and a temperature in the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Annotated, Any

import torch
from torch import nn

from calibrant import metrics
from calibrant.methods.fit.fit import fit
from calibrant.report.results import Record
from studies.common.jobs import run_jobs
from studies.common.keys import Key, make_key
from studies.common.options import Jobs, Option, Seeds
from studies.common.store import Store
from studies.common.study import Plan, Study
from studies.networks import plain
from studies.networks.page import tell
from studies.networks.tasks import TASKS, Splits, TaskKind, classes_of

SEEDS = 5
STARTS = ("scratch", "tuned")
EPOCHS: dict[str, int | None] = {"scratch": None, "tuned": 15}
"""Epochs of `calibrant.fit`, None for its default; plain training gets the same time."""
REPEATS = {"scratch": 1, "tuned": 3}
"""Trainings of both methods per seed, whose scores are averaged.

Fine-tuning on a few hundred samples is short, and its result depends on the order of the batches: two runs on the same
data differ by 1 to 3 % in NLL, more than the methods do.
"""
SOURCE_STEPS = 400


def plan(
    *,
    seeds: Seeds = SEEDS,
    only: Annotated[Sequence[str] | None, Option("Some of digits, languages, reviews and table; default: all.")] = None,
    starts: Annotated[Sequence[str] | None, Option("scratch or tuned; default: all.")] = None,
    jobs: Jobs = None,
) -> Plan:
    """Compare `calibrant.fit` with plain training in the same time, on a CNN, LSTM, transformer and tabular network.

    Each network is trained from scratch on few samples, and fine-tuned after a related task. The report has paired
    differences of NLL.
    """
    names, begun = _known(only, TASKS, "task"), _known(starts, STARTS, "start")
    keys = [key_of(name, start, seed) for seed in range(seeds) for name in names for start in begun]
    config = {"tasks": names, "starts": begun, "epochs": EPOCHS, "repeats": REPEATS, "device": "cpu"}

    def make(store: Store, missing: list[Key]) -> None:
        run_jobs(store, missing, beside=[[partial(measure, key)] for key in missing], workers=jobs)

    return Plan(keys, config, make, expected)


def key_of(task: str, start: str, seed: int) -> Key:
    """Return the key of one comparison."""
    return make_key(
        settings=f"epochs {EPOCHS[start]}, rates {plain.RATES}, repeats {REPEATS[start]}",
        task=task,
        start=start,
        seed=seed,
    )


def expected(line: Mapping[str, Any]) -> Key | None:
    """Return the current key of a stored comparison; None if this command does not know it."""
    fields = line["key"]
    return key_of(**fields) if fields["task"] in TASKS and fields["start"] in STARTS else None


def measure(key: Key) -> dict[Key, Record]:
    """Return the record of one comparison. Time is CPU time on one thread, which other processes hardly affect."""
    name, start, seed = key["task"], key["start"], key["seed"]
    task, threads = TASKS[name], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {key: {"task": name, "start": start, "seed": seed, **compare(task, start, seed)}}
    finally:
        torch.set_num_threads(threads)


def compare(task: TaskKind, start: str, seed: int) -> Record:
    """Return the scores and times of both methods on one draw of a task, averaged over the repeats."""
    with torch.random.fork_rng(devices=[]):
        model, splits = prepared(task, start, seed)
        train, val, test = (task.loader(pair, shuffle=part == "train") for part, pair in splits._asdict().items())
        pairs = [train_both(model, train, val, test, start, seed + 1000 * k) for k in range(REPEATS[start])]
    counts, ours, plain = zip(*pairs, strict=True)
    found: Record = {"networks": sorted(set(counts))}
    for who, each in (("fit", ours), ("plain", plain)):
        found[who] = {name: float(f"{mean(own[name] for own in each):.6g}") for name in each[0]}
        found[who]["nll_of_repeats"] = [own["nll"] for own in each]
    return found


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
    rival, temperature = plain.train_plain(model, train, val, seconds=seconds)
    own = time.process_time() - began
    logits, labels = plain.predict(rival, test)
    return (
        len(result.networks),
        scores(result.probs(test).numpy(), labels) | {"seconds": round(seconds, 2)},
        scores(temperature.predict_proba(logits), labels) | {"seconds": round(own, 2)},
    )


def prepared(task: TaskKind, start: str, seed: int) -> tuple[nn.Module, Splits]:
    """Return the initial network and its data; a tuned network has learned the source task and has a new head."""
    splits = task.draw(seed, start)
    classes = classes_of(splits)
    if start != "tuned":
        return task.build(classes, seed), splits
    source = task.draw(seed, "source")
    model = task.build(classes_of(source), seed)
    plain.train_steps(model, task.loader(source.train, shuffle=True), SOURCE_STEPS)
    head = model.get_submodule(task.head)
    assert isinstance(head, nn.Linear)
    setattr(model, task.head, nn.Linear(head.in_features, classes))
    return model, splits


def scores(probs: Any, labels: Any) -> dict[str, float]:
    """Return NLL, accuracy and calibration on the test part."""
    found = {
        "nll": metrics.nll(probs, labels),
        "accuracy": (probs.argmax(1) == labels).mean(),
        "ece15": metrics.ece(probs, labels, 15),
        "smooth_ece": metrics.smooth_ece(probs, labels),
    }
    return {name: float(f"{float(value):.6g}") for name, value in found.items()}


def extend(config: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """What the tasks of the records are."""
    used = {r["task"] for r in records}
    return {"stories": {n: f"{t.kind}: {t.story}" for n, t in TASKS.items() if n in used}}


def _known(given: Sequence[str] | None, names: Any, noun: str) -> list[str]:
    if unknown := [name for name in given or () if name not in names]:
        raise ValueError(f"Each {noun} must be one of {', '.join(names)}; got {', '.join(unknown)}.")
    return [name for name in names if given is None or name in given]


STUDY = Study(
    "networks",
    axes=("task", "start", "seed"),
    plan=plan,
    order=lambda config: {"task": TASKS, "start": STARTS, "seed": None},
    extend=extend,
    report=lambda results, path: tell(results),
    needed=("tasks", "starts", "epochs", "stories"),
)
run = STUDY.run
