"""Sections and figure of the comparison with other libraries."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from calibrant.plots import save_figure
from calibrant.plots.style import GREY, INK, PALETTE, context
from calibrant.posthoc import CALIBRATORS
from docs.generate.stored import stored
from docs.generate.tables import TABLES, on_tables
from studies.report import Column, to_markdown
from studies.tables.compared import JUDGED, ratios
from studies.tables.costs import costs_of
from studies.tables.peers import OWN, RIVAL

NAMES = {
    "plain": "plain training",
    "eager": "exact, `Unrolled(10)`",
    "traced": "exact, `Unrolled(10)`, traced",
    "truncated": "`Truncated(10, last=2)`",
    "truncated, traced": "`Truncated(10, last=2)`, traced",
    "torchopt": "exact, torchopt",
}

FIRST = 10
"""How many methods the table of classifiers shows; docs/reproducing.md shows all."""


def metric_speed() -> str:
    """Seconds of the metrics on one large sample, compared with the library of the record."""
    rows = [
        [
            f"`{r['name'].split('/')[1].split()[0]}`",
            r["peer"],
            f"{r['n']:,}",
            median(r["seconds"]),
            median(r["peer_seconds"]),
        ]
        for r in stored("bench").records
        if r["name"].startswith("metrics/") and "time over" in r["name"]
    ]
    return to_markdown(["metric", "other library", "predictions", "calibrant, seconds", "other, seconds"], rows)


def posthoc() -> str:
    """For each calibrator: on how many models its held-out NLL is lower than, or as low as, that of the best peer."""
    by_kind = defaultdict(list)
    for record in stored("bench").records:
        group, _, kind = record["name"].rpartition("/")
        if group.startswith("posthoc/") and kind in CALIBRATORS:
            by_kind[kind].append(record)
    rows = []
    for kind, records in by_kind.items():
        lower = sum(r["interval"][1] < 0 for r in records)
        higher = sum(r["interval"][0] > 0 for r in records)
        differences = [r["difference"] for r in records]
        peers = sorted({r["best_peer"].split(" ")[0] for r in records})
        rows.append(
            [
                f"`{kind}`",
                ", ".join(peers),
                f"{lower}, {len(records) - lower - higher}, {higher}",
                median(differences),
                max(differences),
            ]
        )
    columns = ["calibrator", "best peer from", "lower, no clear difference, higher"]
    sizes = [Column(f"{which} difference", digits=4) for which in ("median", "largest")]
    return to_markdown([*columns, *sizes], rows)


def classifiers() -> str:
    """Mean ranks of the best methods and, table by table, NLL over that of the best rival."""
    rankings = on_tables().rankings()
    nll, by_table = rankings["nll"], best_rival_ratios()
    values = sorted(by_table.values())
    rows = [
        [f"`{method}`", *(rankings[metric].mean_ranks[method] for metric in JUDGED), nll.wins(method)]
        for method in sorted(nll.methods, key=nll.mean_ranks.__getitem__)[:FIRST]
    ]
    columns = [
        "method",
        *(Column(f"mean rank, {name}", better="low", digits=2) for name in JUDGED.values()),
        Column("first in NLL", better="high"),
    ]
    above = [name for name, ratio in by_table.items() if ratio > 1]
    return (
        to_markdown(columns, rows)
        + f"\n\nThese are the first {len(rows)} of {len(nll.methods)} methods, by the mean rank in NLL. "
        "[Twenty tables](reproducing.md#twenty-tables) has all of them."
        f"\n\nNLL of `{OWN}` divided by that of the best rival of each table: from {values[0]:.2f} to "
        f"{values[-1]:.2f}, median {median(values):.2f}. It is above 1 on {len(above)} of {len(values)} tables"
        + (f" ({', '.join(above)})." if above else ".")
        + _time()
    )


def _time() -> str:
    """Seconds of single fits, summed over the tables on which both methods were measured."""
    seconds = costs_of(stored(TABLES).records, "seconds", [OWN, RIVAL]).values()
    if not seconds:
        return ""
    ours, rival = (sum(timing[name] for timing in seconds) for name in (OWN, RIVAL))
    return (
        f"\n\nOne fit on each of {len(seconds)} tables takes {ours:.0f} s in total with `{OWN}` and {rival:.0f} s with "
        f"`{RIVAL}`. The fits ran one after the other with two threads, on an idle machine with two cores."
    )


def engine() -> str:
    """Time of an inner step with its hypergradient, and that of plain training and torchopt; one column per network."""
    ratios = {}
    for record in stored("bench").records:
        if "ratios_to_plain" in record:
            ratios[re.search(r"MLP [0-9-]+", record["name"])[0]] = record["ratios_to_plain"]
    rows = [[NAMES[how], *(ratio[how] for ratio in ratios.values())] for how in NAMES]
    return to_markdown(["", *(Column(name, digits=2) for name in ratios)], rows)


def draw(folder: Path) -> Iterator[Path]:
    """NLL of each method over that of the best other method, one row for each table."""
    ratios = best_rival_ratios()
    order = sorted(ratios, key=ratios.__getitem__)
    with context() as plt:
        figure, ax = plt.subplots(figsize=(6, 0.24 * len(order) + 0.9), layout="constrained")
        ax.axvline(1, color=GREY, linewidth=1)
        ax.scatter([ratios[name] for name in order], range(len(order)), color=PALETTE[0], s=24, zorder=2)
        ax.set_yticks(range(len(order)), order, color=INK)
        ax.set_xlabel(f"NLL of {OWN} / NLL of the best rival; left of the line is better")
        yield save_figure(figure, folder / "comparison-tables")[0]
        plt.close(figure)
    (folder / "comparison-tables.png").unlink()


def best_rival_ratios() -> dict[str, float]:
    """NLL of `self-calibrated` over that of the best rival, by table."""
    return {each.table: each.ratio.value for each in ratios(on_tables().records, 0.0)}


SECTIONS = {
    "compare-metrics": metric_speed,
    "compare-posthoc": posthoc,
    "compare-classifiers": classifiers,
    "compare-engine": engine,
}
