"""The first paper's experiments again (Sanguin et al. 2024): Table 1 and Figures 1 to 3, with intervals and floors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch

from calibrant.experiments import figures
from calibrant.experiments.page import MATCHED, make_report, to_terminal
from calibrant.experiments.parts import in_parts
from calibrant.experiments.records import Prepared, prepare, reference, resolve_device, weight_shares
from calibrant.experiments.runs import Planned, Run, few_threads, run_all
from calibrant.experiments.shared import checked_methods, checked_sets, made, read_own, seed_count
from calibrant.methods import BO4SC, METHODS, Standard
from calibrant.report import write_results

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
) -> Path:
    """Train every method on every set and seed, and write results, figures and one report; returns its path.

    Parameters
    ----------
    seeds : how many, counted from ``first_seed``; 20 by default, 3 with ``quick``
    out : folder for ``results.json``, ``results.figures.json``, ``figures/`` and ``report.html``
    device : "auto", "cpu" or "cuda"
    source : a result file: tables, figures and report are made from it and the figures' numbers beside it
    sets : names of synthetic sets; all five where not given
    settings : a ``settings.json`` of the grid search, instead of the settings that come with the package
    methods : ids of methods; all where not given
    """
    folder = Path(out)
    if source is not None:
        return write_report(Path(source), folder)
    count, sets = seed_count(seeds, quick=quick), checked_sets(sets)
    chosen, origin = chosen_settings(settings)
    where, span = resolve_device(device), range(first_seed, first_seed + count)
    methods = checked_methods(methods, METHODS)
    used = methods_of(plan(sets, span[:1], chosen, methods))
    parts = in_parts(train_and_measure, sets, device=where, seeds=span, settings=chosen, methods=methods)
    config = {
        "experiment": "bo4sc",
        "seeds": count,
        "first_seed": first_seed,
        "quick": quick,
        "device": str(where),
        "settings": {name: chosen[name] for name in sets},
        "settings_origin": origin,
        "methods": used,
        "seconds": {what: round(max(part.seconds[what] for part in parts), 1) for what in parts[0].seconds},
        **made(),
    }
    order = {name: position for position, name in enumerate([*sets, *used])}
    records = [record for part in parts for record in part.records]
    records.sort(key=lambda r: (order[r["dataset"]], r["seed"], order[r["method"]]))
    results = write_results(folder / "results.json", config, records)
    figures.write({name: numbers for part in parts for name, numbers in part.figures.items()}, results)
    return write_report(results, folder)


class Measured(NamedTuple):
    """What the runs of some sets gave: records, the numbers of figures, and the seconds of each stage."""

    records: list[dict[str, Any]]
    figures: figures.Numbers
    seconds: dict[str, float]


def train_and_measure(
    *,
    sets: Sequence[str],
    device: torch.device,
    seeds: Sequence[int],
    settings: Settings,
    methods: Sequence[str] | None = None,
) -> Measured:
    """These methods on these sets."""
    clock: dict[str, float] = {}
    entries = plan(sets, seeds, settings, methods)
    with timed(clock, "train"):
        runs = run_all(entries, device=device)
    with timed(clock, "truth"):
        for prepared in {id(prepared): prepared for *_, prepared in entries}.values():
            reference(prepared.dataset)
            _ = prepared.posterior
    with timed(clock, "measure"), few_threads():
        return Measured([record_of(run) for run in runs], figures.collect(runs), clock)


def write_report(results: Path, out: Path) -> Path:
    """Make tables, figures and page from files alone, and print the main tables."""
    content = read_own(results, "bo4sc")
    print(to_terminal(content))
    return make_report(content, figures.read(results)).write(out)


def chosen_settings(path: str | Path | None = None) -> tuple[Settings, dict[str, Any] | None]:
    """BO4SC's settings for each set, and where they come from: what `calibrant sweep bo4sc` writes as `settings.json`.

    Without a path, `bo4sc_settings.json` of this package, a copy of such a file. Its key `origin` has the command,
    grid, seeds, criterion, version and date of the search; it is None for a file that does not say, and the report
    then says so.
    """
    file = resources.files("calibrant.experiments") / "bo4sc_settings.json" if path is None else Path(path)
    text = file.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
        origin = found.pop("origin", None)
        for own in found.values():
            BO4SC(**with_tuples(own))
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{file} must hold arguments of BO4SC for each set, as `calibrant sweep bo4sc` writes them: {error}."
        ) from error
    return found, origin


def with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a file as arguments of BO4SC: JSON has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def methods_of(entries: Sequence[Planned]) -> dict[str, str | dict[str, str]]:
    """What each method ran with: one text, or one for each set where they differ."""
    found: dict[str, dict[str, str]] = {}
    for name, method, prepared in entries:
        found.setdefault(name, {})[prepared.dataset] = repr(method)
    return {name: next(iter(own.values())) if len(set(own.values())) == 1 else own for name, own in found.items()}


def plan(
    sets: Sequence[str], seeds: Sequence[int], settings: Settings, methods: Sequence[str] | None = None
) -> list[Planned]:
    """Every method on every set and seed, and BO4SC's control; a set and seed is prepared once, and shared."""
    unknown = [name for name in sets if name not in settings]
    if unknown:
        raise ValueError(
            f"there are no settings of bo4sc for {', '.join(unknown)}; run `calibrant sweep bo4sc`, or name by --sets "
            f"only sets that have some: {', '.join(settings) or 'none'}."
        )
    wanted, entries = checked_methods(methods, METHODS), list[Planned]()
    for name in sets:
        for seed in seeds:
            prepared = prepare(name, seed)
            for method in wanted:
                value = METHODS[method].method
                if method == "bo4sc" and isinstance(value, BO4SC):
                    entries.append((MATCHED, matched(settings[name]), prepared))
                    value = replace(value, **with_tuples(settings[name]), keep_history=True)
                entries.append((method, value, prepared))
    return entries


def matched(settings: dict[str, Any]) -> Standard:
    """Standard training with BO4SC's own network, epochs and learning rate: the two differ by the weights alone."""
    return Standard(
        hidden=tuple(settings["hidden"]), epochs=settings["epochs"], learning_rate=settings["learning_rate"]
    )


def record_of(run: Run[Prepared]) -> dict[str, Any]:
    """One record; BO4SC's says where its weights ended."""
    return run.record() | (weight_shares(run.fitted, run.prepared.task.train) if run.method == "bo4sc" else {})


@contextmanager
def timed(clock: dict[str, float], part: str) -> Iterator[None]:
    """Add the time that a part takes."""
    begin = time.perf_counter()
    yield
    clock[part] = time.perf_counter() - begin
