"""`calibrant.fit` with its recipes against the usual loops, above 4,096 samples.

``python -m studies.benchmarks.recipes`` measures it. The rivals are SGD (0.1, Nesterov momentum 0.9, weight decay 5e-4)
and AdamW (1e-3, weight decay 0.05, gradient norm 1), each with one cycle at a third, one and three times that rate and
as many epochs as `calibrant.fit`. The run with the lowest validation loss is chosen, and gets a temperature fitted to
the validation part. Its time is that of the chosen run. Every run is stored as soon as it ends; the next call takes the
missing ones, until ``--minutes`` are over.

With ``--device cuda`` the rivals have one rate, and each also runs under ``torch.compile(mode="reduce-overhead")``; the
faster of the two times counts. ``--images`` names files with arrays ``x`` (n, 32, 32, 3) of bytes and ``y`` for three
more tasks: a ResNet-18, a WideResNet-16-4 and a small vision transformer, with crops and flips on the device::

    python -m studies.benchmarks.recipes --device cuda --images a.npz b.npz --out results/recipes-gpu.json

Add ``--epochs 15 --minutes 9`` for ten minutes on a GPU.

Recipes are chosen with seeds from 100 on. Seeds 0 to 2 were read while recipes still changed, so the comparison begins
with seed 3.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant import metrics
from calibrant.models import resnet18, wide_resnet
from calibrant.posthoc import make_calibrator
from calibrant.report import machine, read_results, versions, write_results
from calibrant.report.results import Record
from studies import networks as plain
from studies.network_tasks import TASKS, Pair, Splits, TaskKind, classes_of

RESULTS = Path("results/recipes.json")
EPOCHS, SEEDS, FIRST = 10, 3, 3
FACTORS = (1 / 3, 1.0, 3.0)
RIVALS = tuple(f"{name} x {factor:.2g}" for name in ("SGD", "AdamW") for factor in FACTORS)
WHO = ("fit", *RIVALS)
GPU_RIVALS = ("SGD x 1", "AdamW x 1")
COMPILED = " compiled"
GPU_WHO = ("fit", *GPU_RIVALS, *(rival + COMPILED for rival in GPU_RIVALS))
TUNED = "digits-tuned"
IMAGES: list[Path] = []
"""The files of the image tasks, from ``--images``."""


@dataclass(frozen=True)
class Case:
    """A task: its data and its network, for a seed."""

    kind: TaskKind
    splits: Splits
    model: nn.Module


def embeddings(seed: int) -> Case:
    """Draw vectors of 128 numbers, as from a sentence encoder: ten overlapping classes, and a head of two layers."""
    generator = torch.Generator().manual_seed(1000 * seed + 5)
    centres = torch.randn(10, 128, generator=generator) * 0.18
    mixing = torch.randn(128, 128, generator=generator) / 128**0.5

    def draw(count: int) -> Pair:
        labels = torch.randint(0, 10, (count,), generator=generator)
        own = centres[labels] * torch.randn(count, 1, generator=generator).abs().add(0.5)
        return Pair((own + torch.randn(count, 128, generator=generator) * 0.6) @ mixing, labels)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 10))
    kind = TaskKind(
        "embeddings", "vectors of a sentence encoder with a head", TASKS["table"].draw, lambda c, s: model, "3"
    )
    return Case(kind, Splits(draw(8000), draw(2000), draw(5000)), model)


def network_task(name: str, seed: int) -> Case:
    """The version with 8,000 samples of a task of `python -m studies.networks`."""
    kind = TASKS[name]
    splits = kind.draw(seed, "large")
    return Case(kind, splits, kind.build(classes_of(splits), seed))


def tuned_digits(seed: int) -> Case:
    """All ten digits, for the network of the first five, which keeps its body and gets a new head."""
    case, source = network_task("digits", seed), TASKS["digits"].draw(seed, "source")
    model = TASKS["digits"].build(5, seed)
    plain.train_steps(model, case.kind.loader(source.train, shuffle=True), 400)
    torch.manual_seed(seed)
    model.head = nn.Linear(64, 10)
    return Case(case.kind, case.splits, model)


@dataclass(frozen=True)
class Crops:
    """Batches of images on their device; with ``shuffle``, shifted by up to four pixels and flipped at random."""

    pair: Pair
    shuffle: bool
    size: int = 128

    def __len__(self) -> int:
        return -(-len(self.pair.labels) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.pair
        count, side = len(labels), images.shape[-1]
        order = torch.randperm(count) if self.shuffle else torch.arange(count)
        for rows in order.split(self.size):
            batch, n = images[rows.to(images.device)], len(rows)
            if self.shuffle:
                flipped = (torch.rand(n) < 0.5).to(images.device)
                batch = torch.where(flipped[:, None, None, None], batch.flip(3), batch)
                down, right = (torch.randint(0, 9, (2, n, 1)) + torch.arange(side)).to(images.device)
                padded = F.pad(batch, (4,) * 4).permute(0, 2, 3, 1)
                own = torch.arange(n, device=images.device)[:, None, None]
                batch = padded[own, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2).contiguous()
            yield batch, labels[rows.to(images.device)]


class ImageKind(TaskKind):
    """A task whose batches are read by :class:`Crops`."""

    def loader(self, pair: Pair, *, shuffle: bool) -> Any:
        """Return batches of images."""
        return Crops(pair, shuffle)


class Vision(nn.Module):
    """A small vision transformer: patches of 4 × 4 pixels, 6 layers of width 192."""

    def __init__(self, n_classes: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 4) ** 2, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 384, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        hidden = self.body(self.patches(x).flatten(2).transpose(1, 2) + self.places)
        return self.head(self.norm(hidden).mean(1))


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "images-resnet": lambda classes, side: resnet18(classes),
    "images-wide": lambda classes, side: wide_resnet(classes, depth=16, width=4),
    "images-transformer": Vision,
}


def images(name: str, seed: int) -> Case:
    """Split the images of the files in ``IMAGES``: seven tenths for training, one for validation, two for the test."""
    if not IMAGES:
        raise ValueError(f"The task {name} needs files of images. Give --images FILE.npz.")
    files = [np.load(path) for path in IMAGES]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pixels, labels = (torch.from_numpy(np.concatenate([file[key] for file in files])) for key in ("x", "y"))
    values = pixels.permute(0, 3, 1, 2).float() / 255
    values = (values - values.mean((0, 2, 3), keepdim=True)) / values.std((0, 2, 3), keepdim=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 * seed + 7))
    cuts = order.tensor_split([len(order) * 7 // 10, len(order) * 8 // 10])
    splits = Splits(*(Pair(values[rows].to(device), labels[rows].long().to(device)) for rows in cuts))
    torch.manual_seed(seed)
    model = NETWORKS[name](int(labels.max()) + 1, values.shape[-1])
    kind = ImageKind(name, "images with crops and flips", TASKS["digits"].draw, lambda classes, own: model, "head")
    return Case(kind, splits, model)


CASES: dict[str, Callable[[int], Case]] = {
    **{name: lambda seed, name=name: network_task(name, seed) for name in TASKS},
    "embeddings": embeddings,
    TUNED: tuned_digits,
    **{name: lambda seed, name=name: images(name, seed) for name in NETWORKS},
}


def train_rival(case: Case, who: str, epochs: int, device: str) -> tuple[nn.Module, float]:
    """Train a copy of the network by a rival's loop; return it with its seconds."""
    name, _, factor = who.removesuffix(COMPILED).partition(" x ")
    torch.manual_seed(0)
    model = network_copy(case, device)
    run = torch.compile(model, mode="reduce-overhead") if who.endswith(COMPILED) else model
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
    begin = clock(device)
    for _ in range(epochs):
        for batch in loader:
            inputs, labels = moved(plain.split(batch), device)
            model.train()
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=device != "cpu"):
                logits = plain.call(run, inputs)
            F.cross_entropy(logits.float(), labels).backward()
            if name == "AdamW":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model, clock(device) - begin


def moved(batch: Any, device: str) -> Any:
    """Return the inputs and labels of a batch on a device."""
    inputs, labels = batch
    inputs = {k: v.to(device) for k, v in inputs.items()} if isinstance(inputs, dict) else inputs.to(device)
    return inputs, labels.to(device)


def network_copy(case: Case, device: str) -> nn.Module:
    """Return a copy of the network on a device."""
    import copy

    return copy.deepcopy(case.model).to(device)


def clock(device: str) -> float:
    """Return the processor time on a CPU, and the time after all kernels on a GPU."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def logits_of(model: nn.Module, case: Case, pair: Pair, device: str) -> Tensor:
    """Return the logits of a part in float64 on the CPU."""
    model.eval()
    with torch.no_grad():
        batches = (moved(plain.split(batch), device)[0] for batch in case.kind.loader(pair, shuffle=False))
        return torch.cat([plain.call(model, inputs).double().cpu() for inputs in batches])


def measure(task: str, seed: int, who: str, epochs: int, device: str, settings: dict[str, Any]) -> Record:
    """Train once; return the validation loss, and the scores on the test part after calibration."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    case = CASES[task](seed)
    parts = case.splits
    labels = {name: getattr(parts, name).labels.cpu() for name in ("val", "test")}
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    record: Record = {"task": task, "seed": seed, "who": who, "epochs": epochs, "device": device}
    if who == "fit":
        train, val = (case.kind.loader(p, shuffle=s) for p, s in ((parts.train, True), (parts.val, False)))
        begin = clock(device)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.manual_seed(0)
            result = calibrant.fit(network_copy(case, device), train, val, epochs=epochs, seed=seed, **settings)
        record |= {"seconds": clock(device) - begin, "method": result.extras["method"]}
        record |= {"warnings": [str(w.message)[:120] for w in told]} if told else {}
        loaders = {name: case.kind.loader(getattr(parts, name), shuffle=False) for name in ("val", "test")}
        probs = {name: result.probs(loader).cpu() for name, loader in loaders.items()}
    else:
        model, seconds = train_rival(case, who, epochs, device)
        scores = {name: logits_of(model, case, getattr(parts, name), device) for name in ("val", "test")}
        begin = clock(device)
        temperature = make_calibrator("temperature").fit(scores["val"].numpy(), labels["val"].numpy())
        record["seconds"] = seconds + clock(device) - begin
        record["val_loss"] = float(F.cross_entropy(scores["val"], labels["val"]))
        probs = {name: torch.from_numpy(temperature.predict_proba(own.numpy())) for name, own in scores.items()}
    torch.set_num_threads(threads)
    if device != "cpu":
        record["gigabytes"] = torch.cuda.max_memory_allocated() / 2**30
    record["val_nll"] = metrics.nll(probs["val"], labels["val"])
    if seed < 100:  # recipes are chosen with seeds from 100 on, by the validation part
        scored = probs["test"], labels["test"]
        record |= {"nll": metrics.nll(*scored), "error": 1 - metrics.accuracy(*scored), "ece": metrics.ece(*scored)}
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in record.items()}


def who_of(device: str) -> tuple[str, ...]:
    """Return who is compared on a device."""
    return WHO if device == "cpu" else GPU_WHO


def chosen(records: list[Record]) -> Iterator[tuple[str, list[tuple[Record, Record]]]]:
    """Yield each task with its pairs of `calibrant.fit` and the chosen rival, for seeds with all runs."""
    for task in dict.fromkeys(r["task"] for r in records):
        pairs = []
        for seed in sorted({r["seed"] for r in records if r["task"] == task}):
            own = {r["who"]: r for r in records if (r["task"], r["seed"]) == (task, seed)}
            if own and own.keys() >= set(who_of(next(iter(own.values()))["device"])):
                rivals = [own[who] for who in RIVALS if who in own and math.isfinite(own[who]["val_nll"])]
                best = min(rivals, key=lambda r: r["val_nll"])
                fastest = min(best["seconds"], own.get(best["who"] + COMPILED, best)["seconds"])
                pairs.append((own["fit"], best | {"seconds": fastest}))
        if pairs:
            yield task, pairs


def summary(records: list[Record]) -> list[Record]:
    """Return one row per task, and one over all tasks: log ratio of NLL, difference of error, ratio of seconds."""
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
        row["time"] = math.exp(mean(math.log(ours["seconds"] / rival["seconds"]) for ours, rival in pairs))
        rows.append(row)
    return rows


def table(records: list[Record]) -> str:
    """Return the comparison as a Markdown table."""
    rows = summary(records)
    lines = [
        "| task | seeds | recipe | best rival | NLL, `calibrant.fit` | NLL, rival | log ratio of NLL | error, points "
        "| time |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        low, high = r["spread"]
        lines.append(
            f"| {r['task']} | {r['seeds']} | {r['method']} | {', '.join(r['rivals'])} | {r['nll']:.4f} | "
            f"{r['rival_nll']:.4f} | {r['ratio']:+.3f} ({low:+.3f} to {high:+.3f}) | "
            f"{r.get('points', math.nan):+.2f} | {r['time']:.2f} |"
        )
    if len(rows) > 1:
        overall = metrics.mean_interval([r["ratio"] for r in rows])
        lines.append("")
        lines.append(
            f"Mean log ratio over {len(rows)} tasks: {overall.value:+.3f}, 95 % interval {overall.low:+.3f} to "
            f"{overall.high:+.3f}; below zero `calibrant.fit` is better. Mean difference of the error: "
            f"{mean(r.get('points', math.nan) for r in rows):+.2f} points; "
            f"median ratio of the times: {median(r['time'] for r in rows):.2f}."
        )
    return "\n".join(lines)


def missing(
    records: list[Record], tasks: list[str], seeds: range, epochs: int, device: str
) -> Iterator[tuple[str, int, str]]:
    """Yield the runs that are not stored, seed by seed."""
    kept = {(r["task"], r["seed"], r["who"]) for r in records if (r["epochs"], r["device"]) == (epochs, device)}
    for seed in seeds:
        for task in tasks:
            yield from ((task, seed, who) for who in who_of(device) if (task, seed, who) not in kept)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", choices=list(CASES), help="default: all that have data")
    parser.add_argument("--images", nargs="*", type=Path, default=[], help="files with x (n, 32, 32, 3) and y")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--first-seed", type=int, default=FIRST, help="100 or more: for choosing recipes; no test part is read"
    )
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after this time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--again", action="store_true", help="train `calibrant.fit` again, and keep the rivals' runs")
    parser.add_argument("--settings", type=json.loads, default={}, help="further arguments of calibrant.fit, as JSON")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    IMAGES[:] = given.images
    given.tasks = given.tasks or [task for task in CASES if IMAGES or task not in NETWORKS]
    end = time.monotonic() + 60 * given.minutes
    records = list(read_results(given.out).records) if given.out.exists() else []
    if given.again:
        records = [r for r in records if r["who"] != "fit" or r["task"] not in given.tasks]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for task, seed, who in missing(records, given.tasks, seeds, given.epochs, given.device):
        if time.monotonic() > end:
            print("Time is up; call again for the rest.")
            break
        records.append(measure(task, seed, who, given.epochs, given.device, given.settings))
        config = {"command": "python -m studies.benchmarks.recipes", "machine": machine(), "versions": versions()}
        write_results(given.out, config, records)
        print({k: v for k, v in records[-1].items() if k != "method"}, flush=True)
    print(table([r for r in records if r["seed"] in seeds and r["device"] == given.device]))


if __name__ == "__main__":
    main()
