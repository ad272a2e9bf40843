"""`studies ablate bo4sc`: measure the effect of each choice in BO4SC and in the self-calibrated method."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant.base.atomic_write import write_text_whole
from calibrant.report import Results
from studies.bo4sc.ablation_page import tell
from studies.bo4sc.plain_descent import choose_sgd, sgd_search, stored_sgd
from studies.bo4sc.variants import SGD, measure, variants
from studies.common.command import export, open_store, usable_folder
from studies.common.contents import in_order, position, read_own
from studies.common.dry_run import LISTING
from studies.common.records import resolve_device
from studies.common.shared import SEEDS, made
from studies.common.synthetic import Plan, run_plan
from studies.sets import SETS

NAME = "bo4sc-ablation"


def run(
    *,
    seeds: int = SEEDS,
    out: str | Path = "out/bo4sc-ablation",
    device: str = "auto",
    sets: Sequence[str] = tuple(SETS),
    only: Sequence[str] | None = None,
    source: str | Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
) -> Path:
    """Train and measure every variant; returns the path of the report.

    ``only`` names the variants to run (default: all). ``bo4sc`` always runs, because the others are compared with it.
    ``source`` is a result file or a store of this experiment; the report is made from it without training. ``jobs`` and
    ``fresh`` are those of :func:`studies.bo4sc.reproduce`.
    """
    if source is not None:
        return write_report(Path(source), usable_folder(out))
    where = resolve_device(device)
    wanted = [v for v in variants() if only is None or v.name in {*only, "bo4sc"}]
    unknown = sorted(set(only or ()) - {v.name for v in wanted})
    if unknown:
        raise ValueError(
            f"only must name variants among {', '.join(v.name for v in variants())}; got {', '.join(unknown)}."
        )
    store = open_store(out, NAME, device=where)
    config: dict[str, Any] = {"experiment": NAME, "seeds": list(range(seeds)), "sets": list(sets)}
    if any(v.name == SGD for v in wanted):
        config["inner_sgd"] = found = stored_sgd(store, sets) or (
            {} if LISTING.get() else choose_sgd(sets, device=where)
        )
        wanted = [replace(v, method=replace(v.method, **found)) if v.name == SGD else v for v in wanted]
    config["variants"] = {v.name: dataclasses.asdict(v.method) for v in wanted}
    config |= {"sgd_search": sgd_search(sets), "device": str(where), **made()}
    plan = Plan({(dataset, v.name): v.method for v in wanted for dataset in sets}, range(seeds))
    run_plan(store, plan, config, measure, device=where, jobs=jobs, fresh=fresh)
    return write_report(export(store, arrange), store.folder)


def arrange(results: Results) -> Results:
    """Sort records by variant and set, and list the seeds and variants that were run."""
    names = [v.name for v in variants()]
    order = position(names, results.config["sets"])
    records = in_order(results.records, lambda r: (order.get(r["method"]), order.get(r["dataset"]), r["seed"]))
    known = results.config["variants"]
    told = {
        "seeds": sorted({record["seed"] for record in records}),
        "variants": {name: known[name] for name in dict.fromkeys(r["method"] for r in records) if name in known},
    }
    return results._replace(config=results.config | told, records=records)


def write_report(results: Path, out: Path) -> Path:
    """Write ``report.html`` and ``report.md`` from a result file or a store, and print the latter."""
    report = tell(read_own(results, NAME, arrange))
    page, text = report.write(out), report.to_markdown()
    write_text_whole(out / "report.md", text + "\n")
    print(text)
    return page
