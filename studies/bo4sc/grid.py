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
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from calibrant.base.atomic_write import write_text_whole
from calibrant.methods import BO4SC
from calibrant.metrics import mean_interval
from calibrant.report import Column, Report, Results
from studies.bo4sc.search import FIRST_SEED, HELD_OUT, Search, arguments
from studies.common.command import begin, export, open_store, tell_user, usable_folder
from studies.common.contents import in_order, position, read_own
from studies.common.jobs import run_jobs
from studies.common.keys import Key, make_key
from studies.common.records import resolve_device, shape_of
from studies.common.runs import Planned, populations
from studies.common.shared import checked_sets, foot, made

NAME = "bo4sc-grid"
GRID: dict[str, tuple[float, ...]] = {
    "steps": (1, 5, 10, 20),
    "outer_learning_rate": (300.0, 1000.0, 3000.0, 10000.0),
    "alpha": (10.0, 30.0, 100.0),
    "width": (32, 64, 128),
    "epochs": (300, 600, 1200, 2000),
    "learning_rate": (0.002, 0.005, 0.02),
}
TOLERANCE = 0.01
CRITERIA = ("bce", "nll", "ece10")
MANY = 500
"""Warn about larger grids on a CPU, where a hundred networks take a few minutes."""


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
    jobs: int | None = None,
    fresh: bool = False,
) -> Path:
    """Search the grid; returns the path of the report.

    Parameters
    ----------
    grid : mapping to lists from ``steps`` (T), ``outer_learning_rate`` (η_w), ``alpha`` (α), ``width``, ``epochs`` and
        ``learning_rate`` (η_θ); names that are not given keep their values in ``GRID``
    seeds : the number of seeds, starting at 10,000
    sets : names of synthetic sets; default: all five
    criterion : the score that the chosen setting minimises: "bce", "nll" or "ece10"
    write : whether to write ``settings.json``, with the chosen arguments of :class:`calibrant.methods.BO4SC` and their
        origin
    source : a result file or a store of this search; report and settings are made from it without training
    jobs : the number of processes that train at the same time; default: the surrounding joblib configuration
    fresh : train the settings again that the store already holds

    The default grid has 1,728 settings, but only 432 are trained, because longer trainings include the shorter ones.
    With five sets and three seeds these are 6,480 networks in 36 populations, which need a GPU. On a CPU, use short
    lists.
    """
    if source is not None:
        return write_report(Path(source), usable_folder(out), settings=write)
    values, where, sets = complete(grid or {}), resolve_device(device), checked_sets(sets)
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}; got {criterion!r}.")
    count = networks(values, sets=len(sets), seeds=seeds)
    if where.type == "cpu" and count > MANY:
        tell_user(
            f"This grid has {count:,} networks of up to {int(max(values['epochs'])):,} epochs, which take hours or "
            "days on a CPU. Give shorter lists, fewer seeds or fewer sets, or use a GPU."
        )
    store = open_store(out, NAME, device=where)
    config = {
        "experiment": NAME,
        "sets": sets,
        "seeds": [FIRST_SEED + k for k in range(seeds)],
        "criterion": criterion,
        "held_out": HELD_OUT,
        "accuracy_tolerance": TOLERANCE,
        "device": str(where),
        **made(),
    }
    keys = [key_of(seeds, fields) for fields in settings_of(values, sets)]
    missing = begin(store, config, keys, expected=lambda line: key_of(seeds, line["key"]), fresh=fresh)
    run_jobs(store, missing, beside=[[Search(tuple(own), seeds, where)] for own in alike(missing)], workers=jobs)
    return write_report(export(store, arrange), store.folder, settings=write)


def settings_of(grid: Mapping[str, Sequence[float]], sets: Sequence[str]) -> list[dict[str, Any]]:
    """Every setting of the grid on every set. Epochs come last, because longer trainings include the shorter ones."""
    names = [*(name for name in grid if name != "epochs"), "epochs"]
    rows = itertools.product(sets, *(grid[name] for name in names))
    return [dict(zip(["dataset", *names], row, strict=True)) for row in rows]


def key_of(seeds: int, fields: Mapping[str, Any]) -> Key:
    """The key of one setting on one set; its record is the mean over all seeds."""
    return make_key(settings=f"{seeds} seeds, {HELD_OUT} points held out", **fields)


def alike(keys: Sequence[Key]) -> list[list[Key]]:
    """Group settings whose networks can train as one population."""
    longest = max((key["epochs"] for key in keys), default=0)
    planned: list[Planned] = [(key, BO4SC(**arguments({**dict(key.fields), "epochs": longest}))) for key in keys]
    groups = populations(planned, lambda key: shape_of(key["dataset"]))
    return [[key for key, _ in group] for group in groups.values()]


def arrange(results: Results) -> Results:
    """Sort records by set and setting, and add the searched values and the chosen settings to the config."""
    config = results.config
    sets, names = position(config["sets"]), [*(name for name in GRID if name != "epochs"), "epochs"]
    records = in_order(results.records, lambda r: (sets.get(r["dataset"]), *(r[name] for name in names)))
    chosen = {
        name: as_settings(choose(own, config["criterion"]))
        for name in config["sets"]
        if (own := [r for r in records if r["dataset"] == name])
    }
    grid = {name: sorted({record[name] for record in records}) for name in GRID}
    return results._replace(config=config | {"grid": grid, "chosen": chosen}, records=records)


def write_report(results: Path, out: Path, *, settings: bool = True) -> Path:
    """Write and print the report from a result file or a store; with ``settings``, also write ``settings.json``."""
    content = read_own(results, NAME, arrange)
    report = tell(content)
    print(report.to_markdown())
    page = report.write(out)
    if settings:
        chosen = {"origin": origin(content), **content.config["chosen"]}
        write_text_whole(out / "settings.json", json.dumps(chosen, indent=1) + "\n")
    return page


def networks(grid: Mapping[str, Sequence[float]], *, sets: int, seeds: int) -> int:
    """The number of networks to train; longer trainings include the shorter ones."""
    return sets * seeds * math.prod(len(values) for name, values in grid.items() if name != "epochs")


def origin(results: Results) -> dict[str, Any]:
    """The origin of the settings, for ``settings.json``: the search, and the version of calibrant."""
    kept = {name: results.config[name] for name in ("command", "grid", "seeds", "criterion", "date")}
    return kept | {"calibrant": results.versions.get("calibrant", "of unknown version")}


def complete(grid: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The values of all six settings: the given ones, and the defaults of ``GRID`` for the others."""
    unknown = sorted(set(grid) - set(GRID))
    if unknown:
        raise ValueError(f"grid must name settings among {', '.join(GRID)}; got {', '.join(unknown)}.")
    values = {name: sorted(set(grid.get(name, default))) for name, default in GRID.items()}
    for name, row in values.items():
        if not row or min(row) <= 0:
            raise ValueError(f"{name} must have at least one value, all above zero; got {row}.")
    return values


def choose(records: Sequence[Mapping[str, Any]], criterion: str = "bce") -> dict[str, Any]:
    """The setting with the lowest criterion among those whose accuracy is at most 0.01 below the grid's median.

    The best accuracy would be a poor reference: among a thousand settings on a few hundred points, it is luck.
    """
    sound = [r for r in records if _known(r[criterion])]
    if not sound:
        raise ValueError(
            "Every setting of the grid failed in training; use smaller values of learning_rate or outer_learning_rate."
        )
    usual = median(r["accuracy"] for r in sound)
    return dict(min((r for r in sound if r["accuracy"] >= usual - TOLERANCE), key=lambda r: r[criterion]))


def _known(value: float | None) -> bool:
    """Whether a training was measured; a failed one has NaN, or null in a file."""
    return value is not None and not math.isnan(value)


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
    scores = [Column(c.upper() if c != "ece10" else "ECE-10") for c in CRITERIA]
    report.table(
        ["set", "T", "η_w", "α", "width", "epochs", "η_θ", *scores, "accuracy"],
        [
            [
                name,
                *(f"{r[k]:g}" for k in ("steps", "outer_learning_rate", "alpha", "width", "epochs", "learning_rate")),
                mean_interval(r["bce_by_seed"]),
                r["nll"],
                r["ece10"],
                r["accuracy"],
            ]
            for name, r in chosen.items()
        ],
    )
    report.section(f"Lowest {criterion} for each value", "The minimum over all values of the other settings.")

    def least(name: str, key: str, value: float) -> float | None:
        found = [r[criterion] for r in records if r["dataset"] == name and r[key] == value]
        return min(filter(_known, found), default=None)

    rows = [[f"{key} = {v:g}", *(least(name, key, v) for name in chosen)] for key in grid for v in grid[key]]
    report.table(["setting", *(Column(name, digits=4) for name in chosen)], rows)
    foot(report, results, hidden=("chosen",))
    return report
