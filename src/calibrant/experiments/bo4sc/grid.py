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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from calibrant._whole import write_text_whole
from calibrant.experiments.bo4sc.search import FIRST_SEED, HELD_OUT, Search, arguments
from calibrant.experiments.common.command import begin, export, open_store, tell_user, usable_folder
from calibrant.experiments.common.contents import in_order, position, read_own
from calibrant.experiments.common.jobs import run_jobs
from calibrant.experiments.common.keys import Key, make_key, own_code
from calibrant.experiments.common.records import resolve_device, shape_of
from calibrant.experiments.common.runs import Planned, populations
from calibrant.experiments.common.shared import checked_sets, foot, made
from calibrant.methods import BO4SC
from calibrant.report import Column, Report, Results, mean_interval

NAME = "bo4sc-grid"
CODE = "experiments/bo4sc/search.py"
GRID: dict[str, tuple[float, ...]] = {
    "steps": (1, 5, 10, 20),
    "weight_lr": (300.0, 1000.0, 3000.0, 10000.0),
    "alpha": (10.0, 30.0, 100.0),
    "width": (32, 64, 128),
    "epochs": (300, 600, 1200, 2000),
    "lr": (0.002, 0.005, 0.02),
}
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
    jobs: int | None = None,
    fresh: bool = False,
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
    source : a result file or a store of this search: report and settings are made from it, and nothing is trained
    jobs : how many processes train at the same time; the ambient joblib configuration decides where not given
    fresh : train again what the store holds of these settings

    The default grid has 1,728 settings, of which 432 are trained: shorter trainings are read off longer ones. With five
    sets and three seeds that is 6,480 networks in 36 populations, for a GPU; on a CPU give short lists.
    """
    if source is not None:
        return write_report(Path(source), usable_folder(out), settings=write)
    values, where, sets = complete(grid or {}), resolve_device(device), checked_sets(sets)
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}; got {criterion!r}.")
    count = networks(values, sets=len(sets), seeds=seeds)
    if where.type == "cpu" and count > MANY:
        tell_user(
            f"This grid has {count:,} networks of up to {int(max(values['epochs'])):,} epochs, hours or days of this "
            "processor; give shorter lists, fewer seeds or sets, or use a GPU."
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
    run_jobs(store, beside=[[Search(tuple(own), seeds, where)] for own in alike(missing)], workers=jobs)
    return write_report(export(store, arrange), store.folder, settings=write)


def settings_of(grid: Mapping[str, Sequence[float]], sets: Sequence[str]) -> list[dict[str, Any]]:
    """Every setting of the grid on every set; epochs last, because shorter trainings are read off longer ones."""
    names = [*(name for name in grid if name != "epochs"), "epochs"]
    rows = itertools.product(sets, *(grid[name] for name in names))
    return [dict(zip(["dataset", *names], row, strict=True)) for row in rows]


def key_of(seeds: int, fields: Mapping[str, Any]) -> Key:
    """The key of one setting on one set: its record is a mean over all seeds."""
    return make_key(settings=f"{seeds} seeds, {HELD_OUT} points held out", code=own_code(CODE), **fields)


def alike(keys: Sequence[Key]) -> list[list[Key]]:
    """Settings whose networks may train as one population, together."""
    longest = max((key["epochs"] for key in keys), default=0)
    planned: list[Planned] = [(key, BO4SC(**arguments({**dict(key.fields), "epochs": longest}))) for key in keys]
    groups = populations(planned, lambda key: shape_of(key["dataset"]))
    return [[key for key, _ in group] for group in groups.values()]


def arrange(results: Results) -> Results:
    """Records set by set, in the order of the grid; the values that were searched, and the choice."""
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
    """Make the report, and ``settings.json`` where asked for, from a file alone; print the report."""
    content = read_own(results, NAME, arrange)
    report = tell(content)
    print(report.to_markdown())
    page = report.write(out)
    if settings:
        chosen = {"origin": origin(content), **content.config["chosen"]}
        write_text_whole(out / "settings.json", json.dumps(chosen, indent=1) + "\n")
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


def as_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """What ``settings.json`` holds for a data set: keyword arguments of :class:`calibrant.methods.BO4SC`."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in arguments(record).items()}


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
