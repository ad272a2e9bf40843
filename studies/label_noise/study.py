"""`studies bench noise`: train with flipped labels and a clean validation part.

A share of the training labels is changed to another class; validation and test labels stay clean. Every registered
method runs with its default setting. ``bo4sc`` therefore has one setting for all sets and rates, not that of a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrant.report import Results
from studies.common.command import export, open_store, usable_folder
from studies.common.contents import in_order, position, read_own, settings_of
from studies.common.pooled import chosen_methods, synthetic_methods
from studies.common.records import resolve_device
from studies.common.shared import SEEDS, made
from studies.common.synthetic import Plan, run_plan
from studies.label_noise.measures import measure
from studies.label_noise.page import tell
from studies.sets import SETS

NAME = "noise"


def run(
    *,
    rates: Sequence[float] = (0.2, 0.4),
    seeds: int = SEEDS,
    first_seed: int = 0,
    out: str | Path = "out/noise",
    device: str = "auto",
    sets: Sequence[str] = tuple(SETS),
    methods: Sequence[str] | None = None,
    source: str | Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
) -> Path:
    """Train every method on clean labels and at every rate; returns the path of the report.

    The seeds start at ``first_seed``. ``source`` is a result file or a store of this experiment; the report is made
    from it without training. ``jobs`` and ``fresh`` are those of :func:`studies.bo4sc.reproduce`.
    """
    if source is not None:
        return write_report(Path(source), usable_folder(out))
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"rates must be shares of labels to flip, between 0 and 1; got {rate}.")
    chosen = chosen_methods(methods)
    levels = [0.0, *sorted(set(rates) - {0.0})]
    where, span = resolve_device(device), range(first_seed, first_seed + seeds)
    store = open_store(out, NAME, device=where)
    config = {"experiment": NAME, "rates": levels, "sets": list(sets), "device": str(where), **made()}
    plan = Plan({(d, m): method for d in sets for m, method in chosen.items()}, span, levels)
    run_plan(store, plan, config, measure, device=where, jobs=jobs, fresh=fresh)
    return write_report(export(store, arrange), store.folder)


def arrange(results: Results) -> Results:
    """Sort records by set, method and rate, and add the rates, seeds and settings to the config."""
    order = position(results.config["sets"], synthetic_methods())
    records = in_order(
        results.records, lambda r: (order.get(r["dataset"]), order.get(r["method"]), r["rate"], r["seed"])
    )
    told = {
        "rates": sorted({record["rate"] for record in records}),
        "seeds": sorted({record["seed"] for record in records}),
        "methods": settings_of(records),
    }
    return results._replace(config=results.config | told, records=records)


def write_report(results: Path, out: Path) -> Path:
    """Write and print the report from a result file or a store."""
    report = tell(read_own(results, NAME, arrange))
    print(report.to_markdown())
    return report.write(out)
