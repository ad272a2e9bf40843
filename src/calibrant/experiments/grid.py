"""The first paper's grid search for BO4SC, on validation data only: one setting for each data set.

The weights over-fit the points that move them (700 outer variables, 300 labels), so a setting is judged on others::

    300 validation points = 200 that move the weights + 100 that score the setting

by the mean over seeds of the confidence's cross-entropy (Eq. 12-13 with the plain maximum, which knows no α). The seeds
of the search begin at 10,000: no experiment reports them, and each has samples of its own. Nothing here sees test data.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel import Callback
from calibrant.bilevel.run import Run
from calibrant.experiments.records import prepare, resolve_device
from calibrant.experiments.runs import progress
from calibrant.experiments.shared import checked_sets, foot, made, read_own
from calibrant.methods import BO4SC, Job, Part, Task, fit_all
from calibrant.metrics import ece
from calibrant.report import Column, Report, Results, mean_interval, write_results

GRID: dict[str, tuple[float, ...]] = {
    "steps": (1, 5, 10, 20),
    "weight_lr": (300.0, 1000.0, 3000.0, 10000.0),
    "alpha": (10.0, 30.0, 100.0),
    "width": (32, 64, 128),
    "epochs": (300, 600, 1200, 2000),
    "lr": (0.002, 0.005, 0.02),
}
FIRST_SEED = 10_000
HELD_OUT = 100
TOLERANCE = 0.01
CRITERIA = ("bce", "nll", "ece10")
MANY = 500
"""Networks above which a processor is the wrong place: a hundred of them take it some minutes."""


def run(
    *,
    grid: Mapping[str, Sequence[float]] | None = None,
    seeds: int = 3,
    out: str | Path = "out/bo4sc-grid",
    device: str = "auto",
    sets: Sequence[str] | None = None,
    criterion: str = "bce",
    write: bool = True,
    source: str | Path | None = None,
) -> Path:
    """Search the grid; returns the path of the report.

    Parameters
    ----------
    grid : mapping from ``steps`` (T), ``weight_lr`` (η_w), ``alpha`` (α), ``width``, ``epochs``, ``lr`` to lists
        A name that is not given keeps its values in ``GRID``.
    seeds : how many, counted from 10,000
    sets : names of synthetic sets; all five where not given
    criterion : what is least at the chosen setting, one of "bce", "nll", "ece10"
    write : whether to write ``settings.json``, the choice in the words of :class:`calibrant.methods.BO4SC` and where it
        comes from
    source : a result file of this search: report and settings are made from it, and nothing is trained

    The default grid has 1,728 settings, of which 432 are trained: shorter trainings are read off longer ones. With five
    sets and three seeds that is 6,480 networks in 36 populations, for a GPU; on a CPU give short lists.
    """
    folder = Path(out)
    if source is not None:
        return write_report(Path(source), folder, settings=write)
    values, where, sets = complete(grid or {}), resolve_device(device), checked_sets(sets)
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}; got {criterion!r}.")
    count = networks(values, sets=len(sets), seeds=seeds)
    if where.type == "cpu" and count > MANY:
        print(
            f"This grid has {count:,} networks of up to {int(max(values['epochs'])):,} epochs, hours or days of this "
            "processor; give shorter lists, fewer seeds or sets, or use a GPU.",
            file=sys.stderr,
        )
    records = search(values, sets=sets, seeds=seeds, device=device)
    chosen = {name: choose([r for r in records if r["dataset"] == name], criterion) for name in sets}
    config = {
        "experiment": "bo4sc-grid",
        "sets": sets,
        "grid": values,
        "seeds": [FIRST_SEED + k for k in range(seeds)],
        "criterion": criterion,
        "held_out": HELD_OUT,
        "accuracy_tolerance": TOLERANCE,
        "chosen": {name: as_settings(record) for name, record in chosen.items()},
        "device": str(where),
        **made(),
    }
    return write_report(write_results(folder / "results.json", config, records), folder, settings=write)


def write_report(results: Path, out: Path, *, settings: bool = True) -> Path:
    """Make the report, and ``settings.json`` where asked for, from a result file alone; print the report."""
    content = read_own(results, "bo4sc-grid")
    report = tell(content)
    print(report.to_markdown())
    page = report.write(out)
    if settings:
        chosen = {"origin": origin(content), **content.config["chosen"]}
        (out / "settings.json").write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    return page


def networks(grid: Mapping[str, Sequence[float]], *, sets: int, seeds: int) -> int:
    """How many are trained: shorter trainings are read off longer ones."""
    return sets * seeds * math.prod(len(values) for name, values in grid.items() if name != "epochs")


def origin(results: Results) -> dict[str, Any]:
    """Where settings come from, for the file that holds them: the search, and the version that searched."""
    kept = {name: results.config[name] for name in ("command", "grid", "seeds", "criterion", "date")}
    return kept | {"calibrant": results.versions.get("calibrant", "of unknown version")}


def complete(grid: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The values of all six settings: those given, and the default grid's for the others."""
    unknown = sorted(set(grid) - set(GRID))
    if unknown:
        raise ValueError(f"The grid has {', '.join(GRID)}; got {', '.join(unknown)}.")
    values = {name: sorted(set(grid.get(name, default))) for name, default in GRID.items()}
    for name, row in values.items():
        if not row or min(row) <= 0:
            raise ValueError(f"{name} needs at least one value, and all above zero; got {row}.")
    return values


def search(
    grid: Mapping[str, Sequence[float]], *, sets: Sequence[str], seeds: int, device: str = "auto"
) -> list[dict[str, Any]]:
    """One record for each data set and setting: the scores on held-out points."""
    tasks = {name: [search_task(name, FIRST_SEED + k) for k in range(seeds)] for name in sets}
    names = [name for name in grid if name != "epochs"]
    settings = [dict(zip(names, row, strict=True)) for row in itertools.product(*(grid[name] for name in names))]
    jobs: list[Job] = []
    held: list[Part] = []
    longest = int(max(grid["epochs"]))
    for name, setting in itertools.product(sets, settings):
        for task, part in tasks[name]:
            jobs.append((BO4SC(**_arguments({**setting, "epochs": longest})), task))
            held.append(part)
    trajectory = Trajectory([int(e) for e in grid["epochs"]], held)
    fit_all(
        jobs,
        device=resolve_device(device),
        callbacks=lambda description: [trajectory, *progress(description)],
        on_group=trajectory.population,
    )
    records = []
    for number, (name, setting) in enumerate(itertools.product(sets, settings)):
        positions = range(number * seeds, (number + 1) * seeds)
        labels = torch.stack([held[p].labels for p in positions])
        for epochs in trajectory.epochs:
            logits = torch.stack([trajectory.logits[p, epochs] for p in positions])
            records.append({"dataset": name, **setting, "epochs": epochs, **score(logits, labels)})
    return records


def search_task(name: str, seed: int) -> tuple[Task, Part]:
    """A seed's training part with the validation points that move the weights; and those that score."""
    task = prepare(name, seed).task
    val = task.need_val("The grid search")
    cut = len(val) - HELD_OUT
    return Task(task.train, val[:cut], task.classes, task.seed), val[cut:]


class Trajectory(Callback):
    """Every member's logits on its held-out points after given numbers of epochs.

    Step sizes are constant, so that a training of 300 epochs *is* the beginning of one of 2,000.
    """

    def __init__(self, epochs: Sequence[int], held: Sequence[Part]) -> None:
        self.epochs, self.held = sorted(set(epochs)), held
        self.logits: dict[tuple[int, int], Tensor] = {}
        """By position of the job, and epochs. NaN for a training that had failed."""
        self._positions: list[int] = []

    @contextmanager
    def population(self, positions: list[int]) -> Iterator[None]:
        """Which jobs the next training consists of; for ``fit_all(on_group=…)``."""
        self._positions = positions
        yield

    def on_start(self, run: Run) -> None:
        self._inputs = torch.stack([self.held[p].inputs for p in self._positions]).to(run.phi)

    def on_step(self, run: Run) -> None:
        due = [e for e in self.epochs if -(-e // run.hypergradient.steps) == run.step]
        if not due:
            return
        params = run.state.params if run.is_population else run.state.params.unsqueeze(0)
        view = run.problem.view  # the paper's network has no buffers
        with torch.no_grad():
            every = torch.func.vmap(lambda own, x: view.bind(own, {}, train=False)(x))(params, self._inputs).cpu()
        every[list(run.failures)] = torch.nan
        for position, logits in zip(self._positions, every, strict=True):
            self.logits.update({(position, epochs): logits for epochs in due})


def score(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Scores of one setting from logits (seeds, n, C) and labels (seeds, n): means over seeds, each seed's ``bce`` too.

    ``bce`` is ``−log p̂`` where the prediction is right and ``−log(1 − p̂)`` where not, p̂ the largest probability
    (Eq. 13); the complement is summed from the other classes, which keeps its digits where p̂ rounds to 1. ``ece10`` is
    that of all seeds' points together, because a hundred points alone would measure noise. NaN if a training failed.
    """
    if not bool(logits.isfinite().all()):
        return {name: float("nan") for name in ("bce", "nll", "ece10", "accuracy")} | {"bce_by_seed": None}
    log_probs = logits.double().log_softmax(-1)
    top = log_probs.max(-1)
    right = top.indices == labels
    others = log_probs.scatter(-1, top.indices.unsqueeze(-1), -torch.inf).logsumexp(-1)
    bce = -torch.where(right, top.values, others).mean(-1)
    nll = -log_probs.gather(-1, labels.unsqueeze(-1)).mean()
    return {
        "bce": bce.mean().item(),
        "nll": nll.item(),
        "ece10": float(ece(log_probs.exp().flatten(0, 1), labels.flatten(), bins=10)),  # type: ignore[arg-type]
        "accuracy": right.double().mean().item(),
        "bce_by_seed": bce.tolist(),
    }


def choose(records: Sequence[Mapping[str, Any]], criterion: str = "bce") -> dict[str, Any]:
    """The setting of the least criterion among those whose accuracy is at most 0.01 below the grid's median.

    The median and not the best accuracy: the best of a thousand settings on a few hundred points is luck.
    """
    sound = [r for r in records if _known(r[criterion])]
    if not sound:
        raise ValueError("Every setting of the grid failed in training; give smaller lr or weight_lr.")
    usual = median(r["accuracy"] for r in sound)
    return dict(min((r for r in sound if r["accuracy"] >= usual - TOLERANCE), key=lambda r: r[criterion]))


def _known(value: float | None) -> bool:
    """Whether a training was measured: a failed one has NaN, and null in a file."""
    return value is not None and not math.isnan(value)


def _arguments(setting: Mapping[str, Any]) -> dict[str, Any]:
    """A setting of the grid in the words of the method."""
    return {
        "steps": int(setting["steps"]),
        "outer_rate": float(setting["weight_lr"]),
        "alpha": float(setting["alpha"]),
        "hidden": (int(setting["width"]),) * 2,
        "epochs": int(setting["epochs"]),
        "learning_rate": float(setting["lr"]),
    }


def as_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """What ``settings.json`` holds for a data set: keyword arguments of :class:`calibrant.methods.BO4SC`."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in _arguments(record).items()}


def tell(results: Results) -> Report:
    """The choice, and what each value costs when everything else is at its best."""
    config, records = results.config, results.records
    criterion, grid = config["criterion"], config["grid"]
    chosen = {name: choose([r for r in records if r["dataset"] == name], criterion) for name in config["chosen"]}
    report = Report(
        "BO4SC: grid search",
        f"Least {criterion} on {HELD_OUT} validation points a seed that did not move the weights, among settings whose "
        f"accuracy is no more than {TOLERANCE} below the grid's median. Seeds {config['seeds'][0]} to "
        f"{config['seeds'][-1]}, which no experiment reports.",
    )
    report.section("Chosen settings")
    scores = [Column(c.upper() if c != "ece10" else "ECE-10") for c in CRITERIA]
    report.table(
        ["set", "T", "η_w", "α", "width", "epochs", "lr", *scores, "accuracy"],
        [
            [
                name,
                *(f"{r[k]:g}" for k in ("steps", "weight_lr", "alpha", "width", "epochs", "lr")),
                mean_interval(r["bce_by_seed"]),
                r["nll"],
                r["ece10"],
                r["accuracy"],
            ]
            for name, r in chosen.items()
        ],
    )
    report.section(f"Least {criterion} with each value", "Over all values of the other settings.")

    def least(name: str, key: str, value: float) -> float | None:
        found = [r[criterion] for r in records if r["dataset"] == name and r[key] == value]
        return min(filter(_known, found), default=None)

    rows = [[f"{key} = {v:g}", *(least(name, key, v) for name in chosen)] for key in grid for v in grid[key]]
    report.table(["setting", *(Column(name, digits=4) for name in chosen)], rows)
    foot(report, results, hidden=("chosen",))
    return report
