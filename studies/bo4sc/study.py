"""`studies reproduce bo4sc`: Table 1 and Figures 1 to 3 of Sanguin et al. 2024, with intervals and noise floors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from calibrant.methods import BO4SC, Method, Standard
from calibrant.report import Results
from calibrant.report.results import Record
from studies.bo4sc import figures
from studies.bo4sc.page import MATCHED, make_report, to_terminal
from studies.common.command import export, open_store, usable_folder
from studies.common.contents import in_order, position, read_own, settings_of
from studies.common.keys import Key
from studies.common.pooled import chosen_methods, synthetic_methods
from studies.common.records import Prepared, resolve_device, weight_shares
from studies.common.runs import FinishedRun
from studies.common.shared import checked_sets, made, seed_count
from studies.common.store import BESIDE
from studies.common.synthetic import Plan, run_plan
from studies.sets import FITTED_SETS

NAME = "bo4sc"
Settings = dict[str, dict[str, Any]]


def reproduce(
    *,
    seeds: int | None = None,
    out: str | Path = "out/bo4sc",
    quick: bool = False,
    device: str = "auto",
    source: str | Path | None = None,
    sets: Sequence[str] | None = None,
    settings: str | Path | None = None,
    first_seed: int = 0,
    methods: Sequence[str] | None = None,
    jobs: int | None = None,
    fresh: bool = False,
) -> Path:
    """Train every method on every set and seed; write results, figures and a report; return the path of the report.

    Runs that the store in ``out`` already holds are not trained again, unless their settings or the study's version
    changed.

    Parameters
    ----------
    seeds : the number of seeds, starting at ``first_seed``; default: 20, or 3 with ``quick``
    out : folder for ``results.jsonl`` (the store), ``results.json``, ``results.figures.json``, ``figures/`` and
        ``report.html``
    device : "auto", "cpu" or "cuda"
    source : a result file or a store; tables, figures and report are made from it without training
    sets : names of synthetic sets; default: all five
    settings : a ``settings.json`` of the grid search; default: the settings of the package
    methods : ids of methods; default: all except self-calibrated-pool
    jobs : the number of processes that train at the same time; default: the surrounding joblib configuration
    fresh : train the runs again that the store already holds
    """
    if source is not None:
        return write_report(Path(source), usable_folder(out))
    count, sets = seed_count(seeds, quick=quick), checked_sets(sets)
    chosen, origin = chosen_settings(settings)
    for name in (FITTED_SETS.keys() & sets) - chosen.keys():  # not searched: settings of the set that it stands for
        chosen[name] = chosen[name.removeprefix("fitted-")]
    where, span = resolve_device(device), range(first_seed, first_seed + count)
    wanted = plan(sets, span, chosen, methods)
    store = open_store(out, NAME, device=where)
    config = {
        "experiment": NAME,
        "seeds": count,
        "first_seed": first_seed,
        "quick": quick,
        "device": str(where),
        "settings": {name: chosen[name] for name in sets},
        "settings_origin": origin,
        **made(),
    }
    run_plan(store, wanted, config, partial(measure, first_seed), device=where, jobs=jobs, fresh=fresh)
    results = export(store, arrange, lambda path: figures.write(figures.of_store(store) or figures.read(path), path))
    return write_report(results, store.folder)


def plan(sets: Sequence[str], seeds: Sequence[int], settings: Settings, methods: Sequence[str] | None = None) -> Plan:
    """Every method on every set and seed, and the control of BO4SC."""
    unknown = [name for name in sets if name not in settings]
    if unknown:
        raise ValueError(
            f"settings must include every set; got none for {', '.join(unknown)}. Run "
            f"`python -m studies sweep bo4sc`, or choose sets with settings by --sets: {', '.join(settings) or 'none'}."
        )
    found: dict[tuple[str, str], Method] = {}
    for name in sets:
        for method, value in chosen_methods(methods).items():
            if method == "bo4sc" and isinstance(value, BO4SC):
                found[name, MATCHED] = matched(settings[name])
                value = replace(value, **with_tuples(settings[name]), keep_history=True)
            found[name, method] = value
    return Plan(found, seeds)


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


def arrange(results: Results) -> Results:
    """Sort records by set, seed and method, and add the seeds and the settings of the methods to the config."""
    config = results.config
    known = [name for method in synthetic_methods() for name in ((MATCHED, method) if method == "bo4sc" else (method,))]
    order = position(config["settings"], known)
    records = in_order(results.records, lambda r: (order.get(r["dataset"]), r["seed"], order.get(r["method"])))
    seeds = {record["seed"] for record in records}
    told = {"seeds": len(seeds), "first_seed": min(seeds), "methods": settings_of(records)}
    return results._replace(config=config | told, records=records)


def write_report(results: Path, out: Path) -> Path:
    """Write the report from a result file or a store, and print the main tables."""
    content = read_own(results, NAME, arrange)
    print(to_terminal(content))
    return make_report(content, figures.read(results)).write(out)


def chosen_settings(path: str | Path | None = None) -> tuple[Settings, dict[str, Any] | None]:
    """Read BO4SC's settings for each set and their origin from a `settings.json` of `python -m studies sweep bo4sc`.

    Without a path, read the file of this package. The key `origin` holds the command, grid, seeds, criterion, version
    and date of the search. If a file has no such key, the origin is None, and the report calls it unknown.
    """
    file = resources.files("studies.bo4sc") / "settings.json" if path is None else Path(path)
    text = file.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
        origin = found.pop("origin", None)
        for own in found.values():
            BO4SC(**with_tuples(own))
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{file} must hold arguments of BO4SC for each set; got something else ({error}). Write it with `calibrant "
            "sweep bo4sc`."
        ) from error
    return found, origin


def with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a file as arguments of BO4SC: lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
