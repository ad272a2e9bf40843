"""`calibrant.fit` with its recipes against the usual loops, above 4,096 samples.

``python -m studies.benchmarks.recipes`` measures it. The rivals are SGD (0.1, Nesterov momentum 0.9, weight decay 5e-4)
and AdamW (1e-3, weight decay 0.05, gradient norm 1), each with one cycle at a third, one and three times that rate and
as many epochs as `calibrant.fit`. The run with the lowest validation loss is chosen, and gets a temperature fitted to
the validation part. Its time is that of the chosen run. Every run is stored as soon as it ends; the next call takes the
missing ones, until ``--minutes`` are over.

With ``--device cuda`` everybody trains in bfloat16, and convolutional networks in the channels-last format. The rivals
have one rate, and each also runs under ``torch.compile(mode="reduce-overhead")``; the faster of the two times counts.
``--data`` names a folder with published files for more tasks: CIFAR-10 and CIFAR-100 with crops and flips on the device
(:data:`studies.benchmarks.recipe_tasks.IMAGES`), 20 newsgroups and a census table
(:mod:`studies.benchmarks.real_tasks`)::

    python -m studies.benchmarks.recipes --device cuda --data FOLDER --minutes 9 --out results/recipes-gpu.json

``--untimed 4`` makes the missing runs in four processes at once, for further seeds: their seconds are not stored.
``--profile`` shows where the time goes (:mod:`studies.benchmarks.recipes_profile`) and stores nothing.

Recipes are chosen with seeds from 100 on. Seeds 0 to 2 were read while recipes still changed, so the comparison begins
with seed 3.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant import metrics
from calibrant.posthoc import make_calibrator
from calibrant.report import machine, versions
from studies import networks as plain
from studies.benchmarks.recipe_tasks import CHOOSING, FOLDER, TASK_NAMES, WITH_DATA, Case, case_of
from studies.network_tasks import Pair
from studies.report import Record, read_results, write_results

RESULTS = Path("results/recipes.json")
EPOCHS, SEEDS, FIRST = 10, 3, 3
FACTORS = (1 / 3, 1.0, 3.0)
RIVALS = tuple(f"{name} x {factor:.2g}" for name in ("SGD", "AdamW") for factor in FACTORS)
WHO = ("fit", *RIVALS)
GPU_RIVALS = ("SGD x 1", "AdamW x 1")
COMPILED = " compiled"
FITS: dict[str, dict[str, Any]] = {"fit": {}, "fit eager": {"compile": None}, "fit" + COMPILED: {"compile": "inductor"}}
"""Ways to call `calibrant.fit`; the first is compared with the rivals."""
GPU_WHO = ("fit", *GPU_RIVALS, *(rival + COMPILED for rival in GPU_RIVALS), "fit eager", "fit" + COMPILED)


@dataclass(frozen=True)
class Options:
    """How to make the runs."""

    device: str = "cpu"
    epochs: int | None = None
    """None: those of the task."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `calibrant.fit`."""
    subset: int | None = None
    """Training images of a quick look."""
    timed: bool = True
    data: Path | None = None

    def epochs_of(self, task: str) -> int:
        """The epochs of all runs of a task."""
        return self.epochs or (WITH_DATA[task].epochs if task in WITH_DATA else EPOCHS)

    def who(self) -> tuple[str, ...]:
        """Who is compared. Compiled runs serve for their time only."""
        if self.device == "cpu":
            return WHO
        return GPU_WHO if self.timed else ("fit", *GPU_RIVALS)

    def key(self, task: str) -> Record:
        """The fields of a record that must be equal for runs that are compared."""
        key: Record = {"epochs": self.epochs_of(task), "device": self.device}
        return key | ({} if self.subset is None else {"subset": self.subset})


def train_rival(
    case: Case, who: str, epochs: int, device: str, watch: Callable[[int], None] = lambda step: None
) -> tuple[nn.Module, float]:
    """Train a copy of the network by a rival's loop; return it with its seconds. ``watch`` is called each step."""
    name, _, factor = who.removesuffix(COMPILED).partition(" x ")
    torch.manual_seed(0)
    begin = clock(device)
    model = copy.deepcopy(case.model).to(device)
    form = torch.preserve_format
    if device != "cpu" and any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()):
        form = torch.channels_last
        model = model.to(memory_format=form)
    run = torch.compile(model, mode="reduce-overhead", dynamic=False) if who.endswith(COMPILED) else model
    loader = case.kind.loader(case.splits.train, shuffle=True)
    scale = next(f for f in FACTORS if f"{f:.2g}" == factor)
    if name == "SGD":
        rate = 0.1 * scale
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
    else:
        rate = 1e-3 * scale
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * len(loader))
    step = 0
    for _ in range(epochs):
        for batch in loader:
            inputs, labels = moved(plain.split(batch), device)
            if form is torch.channels_last:
                inputs = inputs.contiguous(memory_format=form)
            model.train()
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=device != "cpu"):
                logits = plain.call(run, inputs)
            F.cross_entropy(logits.float(), labels).backward()
            if name == "AdamW":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            watch(step)
    return model, clock(device) - begin


def moved(batch: Any, device: str) -> Any:
    """Return the inputs and labels of a batch on a device."""
    inputs, labels = batch
    inputs = {k: v.to(device) for k, v in inputs.items()} if isinstance(inputs, dict) else inputs.to(device)
    return inputs, labels.to(device)


def train_fit(case: Case, seed: int, epochs: int, device: str, **settings: Any) -> tuple[Any, float]:
    """Train by `calibrant.fit`; return the result with its seconds."""
    parts = case.splits
    train, val = (case.kind.loader(p, shuffle=s) for p, s in ((parts.train, True), (parts.val, False)))
    torch.manual_seed(0)
    begin = clock(device)
    model = copy.deepcopy(case.model).to(device)
    result = calibrant.fit(model, train, val, epochs=epochs, seed=seed, **settings)
    return result, clock(device) - begin


def clock(device: str) -> float:
    """Return the processor time on a CPU, and the time after all kernels on a GPU."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def begin_on_gpu(case: Case, device: str) -> int:
    """Load the libraries, so that no run pays for it, and free what earlier runs left; return the bytes in use."""
    torch._dynamo.reset()
    inputs, _ = moved(plain.split(next(iter(case.kind.loader(case.splits.val, shuffle=False)))), device)
    with torch.autocast("cuda", torch.bfloat16):
        plain.call(copy.deepcopy(case.model).to(device), inputs).sum().backward()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def logits_of(model: nn.Module, case: Case, pair: Pair, device: str) -> Tensor:
    """Return the logits of a part in float64 on the CPU."""
    model.eval()
    with torch.no_grad():
        batches = (moved(plain.split(batch), device)[0] for batch in case.kind.loader(pair, shuffle=False))
        return torch.cat([plain.call(model, inputs).double().cpu() for inputs in batches])


def measure(task: str, seed: int, who: str, options: Options) -> Record:
    """Train once; return the validation loss, and the scores on the test part after calibration."""
    FOLDER[:] = [] if options.data is None else [options.data]
    threads, device, epochs = torch.get_num_threads(), options.device, options.epochs_of(task)
    torch.set_num_threads(1)
    case = case_of(task, seed, device, options.subset)
    names = ("val", "test") if seed < CHOOSING else ("val",)  # recipes are chosen by the validation part
    parts = {name: getattr(case.splits, name) for name in names}
    before = begin_on_gpu(case, device) if device != "cpu" else 0
    record: Record = {"task": task, "seed": seed, "who": who, **options.key(task)}
    compiled = who.endswith(COMPILED)
    if who in FITS:
        settings = options.settings | FITS[who]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result, seconds = train_fit(case, seed, epochs, device, **settings)
        story = result.extras["method"]
        record |= {"method": story, "precision": "bfloat16" if story.endswith("bfloat16") else "float32"}
        record |= {"warnings": [str(w.message)[:120] for w in told]} if told else {}
        probs = {name: result.probs(case.kind.loader(part, shuffle=False)).cpu() for name, part in parts.items()}
    else:
        model, seconds = train_rival(case, who, epochs, device)
        scores = {name: logits_of(model, case, part, device) for name, part in parts.items()}
        val_labels = parts["val"].labels.cpu()
        begin = clock(device)
        temperature = make_calibrator("temperature").fit(scores["val"].numpy(), val_labels.numpy())
        seconds += clock(device) - begin
        record["precision"] = "float32" if device == "cpu" else "bfloat16"
        record["val_loss"] = float(F.cross_entropy(scores["val"], val_labels))
        probs = {name: torch.from_numpy(temperature.predict_proba(own.numpy())) for name, own in scores.items()}
    torch.set_num_threads(threads)
    record |= {"seconds": seconds} if options.timed else {}
    if device != "cpu":
        record |= {"compiled": compiled, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        record["gigabytes"] = (torch.cuda.max_memory_allocated() - before) / 2**30  # beyond the data
    labels = {name: part.labels.cpu() for name, part in parts.items()}
    record["val_nll"] = metrics.nll(probs["val"], labels["val"])
    if "test" in parts:
        scored = probs["test"], labels["test"]
        record |= {"nll": metrics.nll(*scored), "error": 1 - metrics.accuracy(*scored), "ece": metrics.ece(*scored)}
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in record.items()}


def chosen(records: list[Record]) -> Iterator[tuple[str, list[tuple[Record, Record]]]]:
    """Yield each task with its pairs of `calibrant.fit` and the chosen rival, for seeds with all runs."""
    for task in dict.fromkeys(r["task"] for r in records):
        pairs = []
        for seed in sorted({r["seed"] for r in records if r["task"] == task}):
            runs = {r["who"]: r for r in records if (r["task"], r["seed"]) == (task, seed)}
            needed = RIVALS if next(iter(runs.values()))["device"] == "cpu" else GPU_RIVALS
            if runs.keys() >= {"fit", *needed}:
                finite = [runs[who] for who in needed if math.isfinite(runs[who]["val_nll"])]
                best = min(finite, key=lambda r: r["val_nll"])
                compiled = runs.get(best["who"] + COMPILED, best)
                pairs.append((runs["fit"], best | min(cost_of(best), cost_of(compiled), key=lambda r: r["seconds"])))
        if pairs:
            yield task, pairs


def cost_of(record: Record) -> Record:
    """The seconds and the memory of a run; NaN where they were not measured."""
    return {key: record.get(key, math.nan) for key in ("seconds", "gigabytes")}


def summary(records: list[Record]) -> list[Record]:
    """Return one row per task: log ratio of NLL, difference of error, ratios of seconds and of memory."""
    key = "nll" if all("nll" in r for r in records) else "val_nll"
    rows: list[Record] = []
    for task, pairs in chosen(records):
        ratios = [math.log(ours[key] / rival[key]) for ours, rival in pairs]
        row: Record = {"task": task, "seeds": len(pairs), "ratio": mean(ratios), "method": pairs[0][0]["method"]}
        row["rivals"] = sorted({rival["who"] for _, rival in pairs})
        row["spread"] = (min(ratios), max(ratios))
        row |= {"nll": mean(o[key] for o, _ in pairs), "rival_nll": mean(r[key] for _, r in pairs)}
        if key == "nll":
            row["points"] = 100 * mean(ours["error"] - rival["error"] for ours, rival in pairs)
        for name, cost in (("time", "seconds"), ("memory", "gigabytes")):
            logs = [math.log(cost_of(ours)[cost] / rival[cost]) for ours, rival in pairs if cost in ours]
            row[name] = math.exp(mean(logs)) if logs else math.nan
        rows.append(row)
    return rows


def table(records: list[Record]) -> str:
    """Return the comparison as a Markdown table."""
    rows = summary(records)
    on_gpu = any("gigabytes" in r for r in records)
    columns = ["task", "seeds", "recipe", "best rival", "NLL, `calibrant.fit`", "NLL, rival", "log ratio of NLL"]
    columns += ["error, points", "time", *(["memory"] if on_gpu else [])]
    lines = ["| " + " | ".join(columns) + " |", "|---|--:|---|---|" + "--:|" * (len(columns) - 4)]
    for r in rows:
        low, high = r["spread"]
        lines.append(
            f"| {r['task']} | {r['seeds']} | {r['method']} | {', '.join(r['rivals'])} | {r['nll']:.4f} | "
            f"{r['rival_nll']:.4f} | {r['ratio']:+.3f} ({low:+.3f} to {high:+.3f}) | "
            f"{r.get('points', math.nan):+.2f} | {r['time']:.2f} |" + (f" {r['memory']:.2f} |" if on_gpu else "")
        )
    if len(rows) > 2:  # an interval over two tasks says nothing
        overall = metrics.mean_interval([r["ratio"] for r in rows])
        lines.append("")
        lines.append(
            f"Mean log ratio over {len(rows)} tasks: {overall.value:+.3f}, 95 % interval {overall.low:+.3f} to "
            f"{overall.high:+.3f}; below zero `calibrant.fit` is better. Mean difference of the error: "
            f"{mean(r.get('points', math.nan) for r in rows):+.2f} points; "
            f"median ratio of the times: {median(r['time'] for r in rows if math.isfinite(r['time'])):.2f}."
        )
    return "\n".join(lines)


Job = tuple[str, int, str]


def missing(records: list[Record], tasks: list[str], seeds: range, options: Options) -> Iterator[Job]:
    """Yield the runs that are not stored, seed by seed: their task, seed and who."""
    stored = {(r["task"], r["seed"], r["who"]) for r in records if comparable(r, options)}
    for seed in seeds:
        for task in tasks:
            yield from ((task, seed, who) for who in options.who() if (task, seed, who) not in stored)


def comparable(record: Record, options: Options) -> bool:
    """Whether a stored run was made with these epochs, on this device and with this much data."""
    same_data = record.get("subset") == options.subset
    return same_data and options.key(record["task"]).items() <= record.items()


def made(jobs: list[Job], options: Options, end: float, processes: int) -> Iterator[Record]:
    """Yield the records of the jobs: in order, or several at once in processes; none starts after ``end``."""
    if not processes:
        for job in jobs:
            if time.time() > end:
                return
            yield measure(*job, options)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        for future in as_completed([pool.submit(_measure_until, end, *job, options) for job in jobs]):
            if (record := future.result()) is not None:
                yield record


def _measure_until(end: float, task: str, seed: int, who: str, options: Options) -> Record | None:
    return None if time.time() > end else measure(task, seed, who, options)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", choices=TASK_NAMES, help="default: all that have data")
    parser.add_argument("--data", type=Path, help="the folder with the published images")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--first-seed", type=int, default=FIRST, help="100 or more: for choosing recipes; no test part is read"
    )
    parser.add_argument("--epochs", type=int, help="default: those of each task")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after this time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subset", type=int, help="training images of a quick look, for seeds from 100 on")
    parser.add_argument("--untimed", type=int, default=0, metavar="N", help="make N runs at once, without their times")
    parser.add_argument("--profile", action="store_true", help="print where the time goes, and store nothing")
    parser.add_argument("--again", action="store_true", help="train `calibrant.fit` again, and keep the rivals' runs")
    parser.add_argument("--settings", type=json.loads, default={}, help="further arguments of calibrant.fit, as JSON")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    options = Options(given.device, given.epochs, given.settings, given.subset, not given.untimed, given.data)
    tasks = given.tasks or [task for task in TASK_NAMES if given.data or task not in WITH_DATA]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if given.subset and given.first_seed < CHOOSING:
        parser.error(f"--subset needs --first-seed {CHOOSING} or more.")
    if given.profile:
        from studies.benchmarks.recipes_profile import profile

        FOLDER[:] = [] if given.data is None else [given.data]
        for task in tasks:
            print(profile(task, options), flush=True)
        return
    end = time.time() + 60 * given.minutes
    records = list(read_results(given.out).records) if given.out.exists() else []
    if given.again:
        records = [r for r in records if r["who"] not in FITS or r["task"] not in tasks]
    jobs = list(missing(records, tasks, seeds, options))
    config = {"command": "python -m studies.benchmarks.recipes", "machine": machine(), "versions": versions()}
    count = 0
    for record in made(jobs, options, end, given.untimed):
        records.append(record)
        write_results(given.out, config, records)
        print({k: v for k, v in record.items() if k != "method"}, flush=True)
        count += 1
    if count < len(jobs):
        print("Time is up; call again for the rest.")
    print(table([r for r in records if r["seed"] in seeds and comparable(r, options)]))


if __name__ == "__main__":
    main()
