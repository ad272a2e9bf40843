"""Search a grid of BO4SC's settings for each data set, on validation data only (`python -m studies sweep bo4sc`).

The weights over-fit the points that move them (700 outer variables, 300 labels). A setting is therefore scored on other
points::

    300 validation points = 200 that move the weights + 100 that score the setting

The score is the mean over seeds of the confidence's cross-entropy (Eq. (12) and Eq. (13) of the first paper, with the
plain maximum, which does not depend on α). The seeds of the search start at 10,000. No experiment reports these seeds,
and each seed has its own samples. Test data are never used.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch

from calibrant.base.atomic_write import write_text_whole
from calibrant.methods import BO4SC
from calibrant.metrics import mean_interval
from studies.bo4sc.search import FIRST_SEED, HELD_OUT, score, search_task, trajectories
from studies.common.jobs import run_jobs
from studies.common.keys import Key, make_key
from studies.common.options import Device, Jobs, Option, Sets
from studies.common.records import resolve_device, shape_of
from studies.common.runs import Planned, populations
from studies.common.shared import checked_sets, foot
from studies.common.store import Store
from studies.common.study import Plan, Study
from studies.report import Column, Record, Report, Results

GRID: dict[str, tuple[float, ...]] = {
    "steps": (1, 5, 10, 20),
    "outer_learning_rate": (300.0, 1000.0, 3000.0, 10000.0),
    "alpha": (10.0, 30.0, 100.0),
    "width": (32, 64, 128),
    "epochs": (300, 600, 1200, 2000),
    "learning_rate": (0.002, 0.005, 0.02),
}
AXES = (*(name for name in GRID if name != "epochs"), "epochs")
TOLERANCE = 0.01
CRITERIA = ("bce", "nll", "ece10")


def plan(
    *,
    steps: Annotated[Sequence[int] | None, Option("T, inner steps per hypergradient.", least=1)] = None,
    outer_learning_rate: Annotated[
        Sequence[float] | None, Option("η_w, of the sample weights.", names=("--outer-learning-rate", "--weight-lr"))
    ] = None,
    alpha: Annotated[Sequence[float] | None, Option("α of the smooth maximum.")] = None,
    width: Annotated[Sequence[int] | None, Option("Hidden units per layer.", least=1)] = None,
    epochs: Annotated[Sequence[int] | None, Option("Training epochs.", least=1)] = None,
    learning_rate: Annotated[
        Sequence[float] | None, Option("η_θ, of the network.", names=("--learning-rate", "--lr"))
    ] = None,
    sets: Sets = None,
    criterion: Annotated[
        str, Option("Score to minimise, on points that do not move the weights.", choices=CRITERIA)
    ] = "bce",
    seeds: Annotated[int, Option("Number of seeds, starting at 10,000.", least=1)] = 3,
    device: Device = "auto",
    jobs: Jobs = None,
) -> Plan:
    """Run the grid search of Sanguin et al. 2024 over all combinations of the given values.

    Each option takes several values, such as `--steps 5 10 20`. Options that are not given keep the default grid, which
    needs a GPU. The chosen settings are written to settings.json (also with --from), for
    `python -m studies reproduce bo4sc --settings`.

    The default grid has 1,728 settings, but only 432 are trained, because longer trainings include the shorter ones.
    With five sets and three seeds these are 6,480 networks in 36 populations. On a CPU, use short lists.
    """
    given = (steps, outer_learning_rate, alpha, width, epochs, learning_rate)
    values = complete(dict(zip(GRID, given, strict=True)))
    where, sets = resolve_device(device), checked_sets(sets)
    config = {
        "sets": sets,
        "seeds": [FIRST_SEED + k for k in range(seeds)],
        "criterion": criterion,
        "held_out": HELD_OUT,
        "accuracy_tolerance": TOLERANCE,
        "device": str(where),
    }

    def make(store: Store, missing: list[Key]) -> None:
        searches = [[Search(tuple(group), seeds, where)] for group in alike(missing)]
        run_jobs(store, missing, beside=searches, workers=jobs)

    keys = [key_of(seeds, fields) for fields in settings_of(values, sets)]
    return Plan(keys, config, make, expected=lambda line: key_of(seeds, line["key"]))


def settings_of(grid: Mapping[str, Sequence[float]], sets: Sequence[str]) -> list[dict[str, Any]]:
    """Every setting of the grid on every set. Epochs come last, because longer trainings include the shorter ones."""
    rows = itertools.product(sets, *(grid[name] for name in AXES))
    return [dict(zip(["dataset", *AXES], row, strict=True)) for row in rows]


def key_of(seeds: int, fields: Mapping[str, Any]) -> Key:
    """The key of one setting on one set; its record is the mean over all seeds."""
    return make_key(settings=f"{seeds} seeds, {HELD_OUT} points held out", **fields)


def alike(keys: Sequence[Key]) -> list[list[Key]]:
    """Group settings whose networks can train as one population."""
    longest = max((key["epochs"] for key in keys), default=0)
    planned: list[Planned] = [(key, BO4SC(**arguments({**dict(key.fields), "epochs": longest}))) for key in keys]
    groups = populations(planned, lambda key: shape_of(key["dataset"]))
    return [[key for key, _ in group] for group in groups.values()]


@dataclass(frozen=True)
class Search:
    """A job that trains settings as one population, each with every seed, and makes one record per setting.

    The scores of shorter trainings are taken during longer ones.
    """

    keys: tuple[Key, ...]
    seeds: int
    device: torch.device

    def __call__(self) -> dict[Key, Record]:
        epochs = sorted({int(key["epochs"]) for key in self.keys})
        settings = list(dict.fromkeys(_without_epochs(key) for key in self.keys))
        places = [(setting, FIRST_SEED + k) for setting in settings for k in range(self.seeds)]
        tasks = [search_task(dict(setting)["dataset"], seed) for setting, seed in places]
        methods = [BO4SC(**arguments({**dict(setting), "epochs": epochs[-1]})) for setting, _ in places]
        jobs = [(method, task) for method, (task, _) in zip(methods, tasks, strict=True)]
        logits = trajectories(jobs, [held for _, held in tasks], epochs, self.device)
        records: dict[Key, Record] = {}
        for key in self.keys:
            first = settings.index(_without_epochs(key)) * self.seeds
            positions = range(first, first + self.seeds)
            on_held = torch.stack([logits[p, int(key["epochs"])] for p in positions])
            records[key] = dict(key.fields) | score(on_held, torch.stack([tasks[p][1].labels for p in positions]))
        return records


def _without_epochs(key: Key) -> tuple[tuple[str, Any], ...]:
    return tuple(field for field in key.fields if field[0] != "epochs")


def arguments(setting: Mapping[str, Any]) -> dict[str, Any]:
    """A setting of the grid as arguments of the method."""
    numbers = {name: float(setting[name]) for name in GRID if name != "width"}
    whole = {name: int(setting[name]) for name in ("steps", "epochs")}
    return {**numbers, **whole, "hidden": (int(setting["width"]),) * 2}


def extend(config: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """The searched values and the chosen settings, as the records have them."""
    chosen = {
        name: as_settings(choose(of_set, config["criterion"]))
        for name in config["sets"]
        if (of_set := [r for r in records if r["dataset"] == name])
    }
    return {"grid": {name: sorted({record[name] for record in records}) for name in GRID}, "chosen": chosen}


def write_settings(results: Results, out: Path) -> None:
    """Write ``settings.json``: the chosen arguments of :class:`calibrant.methods.BO4SC`, and their origin."""
    chosen = {"origin": origin(results), **results.config["chosen"]}
    write_text_whole(out / "settings.json", json.dumps(chosen, indent=1) + "\n")


def origin(results: Results) -> dict[str, Any]:
    """The origin of the settings, for ``settings.json``: the search, and the version of calibrant."""
    kept = {name: results.config[name] for name in ("command", "grid", "seeds", "criterion", "date")}
    return kept | {"calibrant": results.versions.get("calibrant", "of unknown version")}


def complete(grid: Mapping[str, Sequence[float] | None]) -> dict[str, list[float]]:
    """The values of all six settings: the given ones, and the defaults of ``GRID`` for the others."""
    values = {name: sorted(set(grid.get(name) or default)) for name, default in GRID.items()}
    for name, row in values.items():
        if min(row) <= 0:
            raise ValueError(f"{name} must be above zero; got {min(row):g}.")
    return values


def choose(records: Sequence[Mapping[str, Any]], criterion: str = "bce") -> dict[str, Any]:
    """The setting with the lowest criterion among those whose accuracy is at most 0.01 below the grid's median.

    The best accuracy would be a poor reference: among a thousand settings on a few hundred points, it is luck.
    """
    frame = pd.DataFrame(records).astype({criterion: float, "accuracy": float})
    sound = frame[frame[criterion].notna()]
    if sound.empty:
        raise ValueError(
            "Every setting of the grid failed in training; use smaller values of learning_rate or outer_learning_rate."
        )
    usual = sound[sound["accuracy"] >= sound["accuracy"].median() - TOLERANCE]
    return dict(records[usual[criterion].idxmin()])


def as_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of ``settings.json`` for a data set: keyword arguments of :class:`calibrant.methods.BO4SC`."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in arguments(record).items()}


def tell(results: Results) -> Report:
    """The report: the chosen settings, and the lowest criterion for each value of each setting."""
    config, records = results.config, results.records
    criterion, grid = config["criterion"], config["grid"]
    chosen = {name: choose([r for r in records if r["dataset"] == name], criterion) for name in config["chosen"]}
    report = Report(
        "BO4SC: grid search",
        f"The chosen setting has the lowest {criterion} on {HELD_OUT} validation points per seed that did not move the "
        f"weights, among settings whose accuracy is at most {TOLERANCE} below the grid's median. Seeds "
        f"{config['seeds'][0]} to {config['seeds'][-1]}; no experiment reports these seeds.",
    )
    report.section("Chosen settings")
    rows = [
        [name, *(f"{r[k]:g}" for k in GRID), mean_interval(r["bce_by_seed"]), r["nll"], r["ece10"], r["accuracy"]]
        for name, r in chosen.items()
    ]
    report.table(
        ["set", "T", "η_w", "α", "width", "epochs", "η_θ", *(Column(c) for c in ("BCE", "NLL", "ECE-10")), "accuracy"],
        rows,
    )
    report.section(f"Lowest {criterion} for each value", "The minimum over all values of the other settings.")
    frame = pd.DataFrame(records).astype({criterion: float})
    least = {key: frame.groupby(["dataset", key])[criterion].min() for key in grid}
    rows = [[f"{key} = {v:g}", *(least[key].get((name, v)) for name in chosen)] for key in grid for v in grid[key]]
    report.table(["setting", *(Column(name, digits=4) for name in chosen)], rows)
    foot(report, results, hidden=("chosen",))
    return report


STUDY = Study(
    "bo4sc-grid",
    axes=("dataset", *AXES),
    plan=plan,
    order=lambda config: {"dataset": config["sets"], **dict.fromkeys(AXES)},
    extend=extend,
    report=lambda results, path: tell(results),
    needed=("criterion", "grid", "chosen", "seeds", "command", "date"),
    after=write_settings,
)
