"""The first paper's experiments again (Sanguin et al. 2024): Table 1 and Figures 1 to 3, with intervals and floors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from calibrant.data import SETS
from calibrant.experiments import figures
from calibrant.experiments.page import MATCHED, make_report, to_terminal
from calibrant.experiments.records import Prepared, prepare, reference, resolve_device, weight_shares
from calibrant.experiments.runs import Planned, Run, one_thread, run_all
from calibrant.methods import BO4SC, METHODS, Standard
from calibrant.report import read_results, write_results
from calibrant.report.results import command

Settings = dict[str, dict[str, Any]]


def reproduce(
    *,
    seeds: int | None = None,
    out: str | Path = "out/bo4sc",
    quick: bool = False,
    device: str = "auto",
    source: str | Path | None = None,
    sets: Sequence[str] = tuple(SETS),
) -> Path:
    """Train every method on every set and seed, and write results, figures and one report; returns its path.

    Parameters
    ----------
    seeds : how many, counted from 0; 20 by default, 3 with ``quick``
    out : folder for ``results.json``, ``results.figures.json``, ``figures/`` and ``report.html``
    device : "auto", "cpu" or "cuda"
    source : a result file: tables, figures and report are made from it and the figures' numbers beside it
    """
    folder = Path(out)
    if source is not None:
        return write_report(Path(source), folder)
    count = seeds if seeds is not None else 3 if quick else 20
    if count < 1:
        raise ValueError(f"seeds is how many, and must be at least 1; got {seeds}.")
    clock: dict[str, float] = {}
    with timed(clock, "train"):
        settings, origin = chosen_settings()
        runs = run_all(plan(sets, count, settings), device=resolve_device(device))
    with timed(clock, "truth"):
        for name in sets:
            reference(name)
        for prepared in {id(run.prepared): run.prepared for run in runs}.values():
            _ = prepared.posterior
    with timed(clock, "measure"), one_thread():
        records = [record_of(run) for run in runs]
        numbers = figures.collect(runs)
    config = {
        "experiment": "bo4sc",
        "seeds": count,
        "quick": quick,
        "device": str(resolve_device(device)),
        "settings": {name: settings[name] for name in sets},
        "settings_origin": origin,
        "methods": {name: repr(entry.method) for name, entry in METHODS.items()} | {MATCHED: "Standard, as bo4sc"},
        "seconds": {part: round(value, 1) for part, value in clock.items()},
        "command": command(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    results = write_results(folder / "results.json", config, records)
    figures.write(numbers, results)
    return write_report(results, folder)


def write_report(results: Path, out: Path) -> Path:
    """Make tables, figures and page from files alone, and print the main tables."""
    content = read_results(results)
    print(to_terminal(content))
    return make_report(content, figures.read(results)).write(out)


def chosen_settings() -> tuple[Settings, str]:
    """BO4SC's settings for each set, and where they come from.

    `bo4sc_settings.json` is what `calibrant sweep bo4sc` writes as `settings.json`. A file that was made in another way
    says so under the key `origin`, and the report repeats it.
    """
    text = (resources.files("calibrant.experiments") / "bo4sc_settings.json").read_text(encoding="utf-8")
    found = json.loads(text)
    return found, found.pop("origin", "chosen by grid search on validation data (`calibrant sweep bo4sc`)")


def plan(sets: Sequence[str], seeds: int, settings: Settings) -> list[Planned]:
    """Every method on every set and seed, and BO4SC's control; a set and seed is prepared once, and shared."""
    unknown = [name for name in sets if name not in settings]
    if unknown:
        raise ValueError(f"bo4sc_settings.json has no settings for {', '.join(unknown)}; run `calibrant sweep bo4sc`.")
    entries: list[Planned] = []
    for name in sets:
        for seed in range(seeds):
            prepared = prepare(name, seed)
            for method, entry in METHODS.items():
                value = entry.method
                if method == "bo4sc" and isinstance(value, BO4SC):
                    entries.append((MATCHED, matched(settings[name]), prepared))
                    own = settings[name] | {"hidden": tuple(settings[name]["hidden"])}
                    value = replace(value, **own, keep_history=True)
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
