"""`studies reproduce bo4sc`: Table 1 and Figures 1 to 3 of Sanguin et al. 2024, with intervals and noise floors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from calibrant.methods import BO4SC, Method, Standard
from studies.bo4sc import figures
from studies.bo4sc.page import MATCHED, make_report, to_terminal
from studies.common.keys import Key
from studies.common.options import Device, FirstSeed, Jobs, Methods, Option, Sets
from studies.common.records import Prepared, resolve_device, weight_shares
from studies.common.runs import FinishedRun
from studies.common.shared import checked_sets, seed_count, settings_of
from studies.common.store import BESIDE
from studies.common.study import Plan, Study
from studies.common.synthetic import chosen_methods, synthetic_methods, synthetic_plan
from studies.report import Record
from studies.sets import FITTED_SETS

Settings = dict[str, dict[str, Any]]


def plan(
    *,
    seeds: Annotated[int | None, Option("Number of seeds; default: 20, or 3 with --quick.", least=1)] = None,
    quick: Annotated[bool, Option("Few seeds; takes minutes on two cores.")] = False,
    device: Device = "auto",
    settings: Annotated[
        str | Path | None,
        Option("settings.json of `python -m studies sweep bo4sc`; default: those of the paper's sets.", exists=True),
    ] = None,
    first_seed: FirstSeed = 0,
    methods: Methods = None,
    sets: Sets = None,
    jobs: Jobs = None,
) -> Plan:
    """Reproduce Table 1 and Figures 1 to 3 of Sanguin et al. 2024, with intervals, noise floors and targets."""
    count, sets = seed_count(seeds, quick=quick), checked_sets(sets)
    chosen, origin = chosen_settings(settings)
    for name in (FITTED_SETS.keys() & sets) - chosen.keys():  # not searched: settings of the set that it stands for
        chosen[name] = chosen[name.removeprefix("fitted-")]
    wanted = planned_methods(sets, chosen, methods)
    config = {
        "seeds": count,
        "first_seed": first_seed,
        "quick": quick,
        "settings": {name: chosen[name] for name in sets},
        "settings_origin": origin,
    }
    return synthetic_plan(
        wanted,
        range(first_seed, first_seed + count),
        partial(measure, first_seed),
        config,
        device=resolve_device(device),
        jobs=jobs,
    )


def planned_methods(
    sets: Sequence[str], settings: Settings, methods: Sequence[str] | None = None
) -> dict[tuple[str, str], Method]:
    """Every method on every set, and the control of BO4SC."""
    unknown = [name for name in sets if name not in settings]
    if unknown:
        raise ValueError(
            f"settings must include every set; got none for {', '.join(unknown)}. Run "
            f"`python -m studies sweep bo4sc`, or choose sets with settings by --sets: {', '.join(settings) or 'none'}."
        )
    planned: dict[tuple[str, str], Method] = {}
    for name in sets:
        for method, value in chosen_methods(methods).items():
            if method == "bo4sc" and isinstance(value, BO4SC):
                planned[name, MATCHED] = matched(settings[name])
                value = replace(value, **with_tuples(settings[name]), keep_history=True)
            planned[name, method] = value
    return planned


def matched(settings: dict[str, Any]) -> Standard:
    """Standard training with BO4SC's network, epochs and learning rate; it differs from BO4SC only by the weights."""
    return Standard(
        hidden=tuple(settings["hidden"]), epochs=settings["epochs"], learning_rate=settings["learning_rate"]
    )


def measure(first_seed: int, key: Key, run: FinishedRun[Prepared]) -> Record:
    """One record. BO4SC's record describes its final weights; records of the first seed also hold figure data."""
    record = run.record() | (weight_shares(run.fitted, run.prepared.task.train) if run.method == "bo4sc" else {})
    drawn = figures.collect(run) if key["seed"] == first_seed else {}
    return record | ({BESIDE: drawn} if drawn else {})


def order(config: Mapping[str, Any]) -> dict[str, Any]:
    """Records are sorted by set, seed and method."""
    known = [name for method in synthetic_methods() for name in ((MATCHED, method) if method == "bo4sc" else (method,))]
    return {"dataset": config["settings"], "seed": None, "method": known}


def extend(config: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """The seeds and the settings of the methods, as the records have them."""
    seeds = {record["seed"] for record in records}
    return {"seeds": len(seeds), "first_seed": min(seeds), "methods": settings_of(records)}


def chosen_settings(path: str | Path | None = None) -> tuple[Settings, dict[str, Any] | None]:
    """Read BO4SC's settings for each set and their origin from a `settings.json` of `python -m studies sweep bo4sc`.

    Without a path, read the file of this package. The key `origin` holds the command, grid, seeds, criterion, version
    and date of the search. If a file has no such key, the origin is None, and the report calls it unknown.
    """
    file = resources.files("studies.bo4sc") / "settings.json" if path is None else Path(path)
    text = file.read_text(encoding="utf-8")
    try:
        settings = json.loads(text)
        origin = settings.pop("origin", None)
        for arguments in settings.values():
            BO4SC(**with_tuples(arguments))
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{file} must hold arguments of BO4SC for each set; got something else ({error}). Write it with `calibrant "
            "sweep bo4sc`."
        ) from error
    return settings, origin


def with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a file as arguments of BO4SC: lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


STUDY = Study(
    "bo4sc",
    axes=("dataset", "method", "seed"),
    plan=plan,
    order=order,
    extend=extend,
    report=lambda results, path: make_report(results, figures.read(path)),
    screen=to_terminal,
    needed=("settings",),
    beside=lambda store, path: figures.write(figures.of_store(store) or figures.read(path), path),
)
reproduce = STUDY.run
