"""The report of `calibrant bench tables`: ranks over tables, tests, verdicts, and every table's scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.experiments.common import words
from calibrant.experiments.common.shared import count, failures, foot
from calibrant.experiments.tables.data import DEVELOPMENT
from calibrant.experiments.tables.ids import FORMER, OWN, RIVAL, STORIES
from calibrant.experiments.tables.peers import PEERS
from calibrant.experiments.tables.ranks import Ranking, against, critical_difference, friedman, ranking
from calibrant.experiments.tables.targets import target_verdicts
from calibrant.methods import METHODS
from calibrant.plots._style import GREY, INK, PALETTE, style
from calibrant.report import Column, Report, Results, Verdict, by_seed, mean_interval, paired_difference, to_markdown
from calibrant.report.results import Record

JUDGED = {"nll": "NLL", "smooth_ece": "smooth ECE"}
APART = "ensemble"
"""Shown, and compared with, but not ranked: the targets except it by name."""
LEVEL = 0.05
OVERLAP = (
    "Splits of one table overlap, so that a mean over n of them varies by (1/n + n_test/n_train)·s² rather than s²/n "
    "(Nadeau & Bengio 2003), with training and validation part as n_train."
)
COLUMNS = (
    Column("accuracy", better="high"),
    Column("nll", better="low"),
    Column("smooth_ece", better="low"),
    Column("ece15", better="low"),
    Column("floor_self15", note="ECE-15 of a perfectly calibrated model with the same confidences."),
    Column("brier", better="low"),
    Column("aurc", better="low"),
    Column("seconds", digits=1),
)


def rankings(records: list[Record], methods: list[str]) -> dict[str, Ranking]:
    """Ranks by each judged metric."""
    return {metric: ranking(records, metric, methods) for metric in JUDGED}


def untried(records: list[Record]) -> list[Record]:
    """The records of tables that no setting was tried on; none where that is all of them, and nothing to tell apart."""
    found = [r for r in records if r["table"] not in DEVELOPMENT]
    return found if len(found) < len(records) else []


def verdicts(ranked: dict[str, Ranking], others: dict[str, Ranking] | None = None) -> list[Verdict]:
    """Whether the recommended method has the best mean rank; the rankings are those without the ensemble.

    The target is set for all tables. ``others`` are ranks on those that no setting was tried on, for the note.
    """
    found = []
    for metric, each in ranked.items():
        statement = f"{OWN} has the best mean rank in {JUDGED[metric]} (the {APART} apart)"
        if OWN not in each.methods or not each.tables or len(each.methods) < 2:
            found.append(Verdict(statement))
            continue
        mean = each.mean_ranks
        rival = next(m for m in mean if m != OWN)
        note = f"best of the others: {rival}, {mean[rival]:.2f}; "
        note += f"{count(len(each.tables), 'table')}, {count(len(each.methods), 'method')}"
        if others and others[metric].tables:
            note += f"; {_on_others(others[metric])}"
        elif DEVELOPMENT.issuperset(each.tables):
            note += "; settings were tried on all of these tables"
        found.append(Verdict(statement, mean[OWN], mean[OWN] < mean[rival], note, digits=2))
    return found


def _on_others(ranked: Ranking) -> str:
    """What the tables say that no setting was tried on: ranks, and which methods the test tells apart."""
    mean, tests = ranked.mean_ranks, against(ranked, OWN)
    rival = next(m for m in mean if m != OWN)
    text = (
        f"{mean[OWN]:.2f} on {count(len(ranked.tables), 'table')} that no setting was tried on, best of the others "
        f"there: {rival}, {mean[rival]:.2f}"
    )
    known = {method: p for method, p in tests.items() if p is not None}
    if not known:
        return f"{text}; too few tables for a test"
    alike = [m for m in mean if m in known and known[m] >= LEVEL]
    text += f"; told apart there (p < {LEVEL}) from {len(known) - len(alike)} of {len(known)} methods"
    return text + (f", not from {', '.join(alike)}" if alike else "")


def write_report(out: Path, results: Results) -> Path:
    """Write `report.html` from a result file alone, and print ranks and verdicts; returns its path."""
    print(to_terminal(results))
    return make_report(results).write(out)


def to_terminal(results: Results) -> str:
    """Ranks and verdicts, for reading in a terminal."""
    methods, compared = _methods(results)
    apart, every = rankings(results.records, compared), rankings(results.records, methods)
    others = rankings(untried(results.records), compared)
    columns, rows = _rank_table(apart, every, methods)
    parts = [to_markdown(columns, rows, exempt=[APART]), ""]
    if _comparable(others):
        parts += [_untried(others), to_markdown(*_beside_table(apart, others)), ""]
    found = [*verdicts(apart, others), *_targets(results.records, methods)]
    lines = [f"{v.word:>12}  {v.statement}: {v.shown} ({v.note})" for v in found if v.holds is not None]
    return "\n".join([*parts, *lines, ""])


def _targets(records: list[Record], methods: list[str]) -> list[Verdict]:
    """Targets on all tables, and on those that no setting was tried on; none without the rivals that they are about."""
    if RIVAL not in methods:
        return []
    found = target_verdicts(rankings(records, methods), records, OWN, FORMER, JUDGED)
    if others := untried(records):
        where = " (tables that no setting was tried on)"
        found += target_verdicts(rankings(others, methods), others, OWN, FORMER, JUDGED, where)
    return found


def _methods(results: Results) -> tuple[list[str], list[str]]:
    """All methods that were measured, and those that are ranked."""
    measured = {r["method"] for r in results.records}
    methods = [m for m in results.config["methods"] if m in measured]
    return methods, [m for m in methods if m != APART]


def make_report(results: Results) -> Report:
    """Verdicts, ranks, tests, and a table for each table."""
    records, config = results.records, results.config
    methods, compared = _methods(results)
    tables, seeds = list(dict.fromkeys(r["table"] for r in records)), sorted({r["seed"] for r in records})
    report = Report(
        "Calibrated classifiers on tables",
        f"{count(len(methods), 'method')}, {count(len(tables), 'table')}, {count(len(seeds), 'seed')}: a seed is a "
        f"stratified split ({', '.join(f'{100 * s:g} %' for s in config['split'])}) and a start of the networks.",
    )
    apart, every = rankings(records, compared), rankings(records, methods)
    others, overlap = rankings(untried(records), compared), _overlap(config["split"])
    report.verdicts([*verdicts(apart, others), *_targets(records, methods)])
    report.section("Ranks", _explained(records, config, methods))
    report.table(*_rank_table(apart, every, methods), exempt=[APART])
    for metric, each in apart.items():
        if each.tables and len(each.methods) > 1:
            report.figure(rank_figure(each), f"Mean ranks in {JUDGED[metric]}; 1 is best.", f"ranks-{metric}")
    report.section("Tests", _tests(apart))
    report.table(*_test_table(apart))
    if _comparable(others):
        report.table(*_beside_table(apart, others), _untried(others))
    if {OWN, APART} <= set(methods):
        head: list[Column | str] = ["table", *(Column(name, digits=4) for name in JUDGED.values())]
        note = f"{OWN} less the {APART}, paired by seed; negative is better. Not judged. {OVERLAP}"
        gaps = [[t, *(_gap(records, t, metric, overlap) for metric in JUDGED)] for t in tables]
        report.table(head, gaps, note)
    report.section("Costs", words.UNEQUAL + words.UNEQUAL_PEERS)
    report.text(
        "Seconds are the mean over tables and seeds that the method was measured with there; our methods' as members "
        "of a population."
    )
    report.table(*_costs(records, config, methods))
    if DEVELOPMENT.intersection(tables):
        report.section("How the defaults were found", words.DEFAULTS)
    report.section("Every table", f"Mean over seeds with its 95 % interval (Student's t). {OVERLAP}")
    if unsuitable := config.get("unsuitable"):
        report.text(" ".join(["Left out:", *(f"{name} ({why})" for name, why in unsuitable.items())]))
    for table in tables:
        about = config["tables"][table]
        size = (count(about[what], noun) for what, noun in (("rows", "row"), ("columns", "column")))
        title = f"{table}: {', '.join(size)}, {about['classes']} classes"
        with report.details(title):
            if notes := config.get("notes", {}).get(table):
                report.text(" ".join(notes))
            report.table(
                ["method", *COLUMNS], [_score_row(records, table, m, overlap) for m in methods], exempt=[APART]
            )
    failures(report, records, "A method that failed on a table is ranked last there.")
    absent = [f"{name}: {why}." for name, why in config.get("left_out", {}).items()]
    report.section("Methods", " ".join(["Left out:", *absent]) if absent else "")
    stories = {name: entry.summary for name, entry in METHODS.items()} | STORIES | PEERS
    made_by = config.get("made_by", {})
    rows = [[m, stories.get(m), config["methods"][m], made_by.get(m)] for m in methods]
    report.table(["method", "what it is", "settings", "made by"], rows)
    foot(report, results, hidden=("methods", "tables", "made_by", "costs", "left_out", "notes", "unsuitable"))
    return report


def rank_figure(ranked: Ranking) -> Any:
    """Each method's mean rank as a dot, its ranks on single tables as ticks, and the critical difference as a bar."""
    mean = ranked.mean_ranks
    with style() as plt:
        figure, ax = plt.subplots(figsize=(6.2, 0.8 + 0.26 * len(mean)), layout="constrained")
        for position, (method, rank) in enumerate(mean.items()):
            column = ranked.ranks[:, ranked.methods.index(method)]
            own = method == OWN
            ax.plot(column, np.full(len(column), position), "|", color=GREY, alpha=0.5, markersize=7)
            ax.plot(rank, position, "o", color=PALETTE[1] if own else PALETTE[0], markersize=7 if own else 5.5)
        if len(ranked.tables) > 1:
            best, width = min(mean.values()), critical_difference(len(ranked.tables), len(mean))
            ax.plot([best, best + width], [-1, -1], color=INK, linewidth=2.5, solid_capstyle="butt")
            ax.text(best, -1.25, f"critical difference {width:.2f}", va="bottom", fontsize=8.5)
        ax.set(yticks=range(len(mean)), yticklabels=list(mean), xlabel=f"rank in {JUDGED[ranked.metric]}")
        ax.set(ylim=(len(mean) - 0.4, -2.2), xlim=(0.5, len(mean) + 0.5))
        plt.close(figure)
    return figure


def _rank_table(
    apart: dict[str, Ranking], every: dict[str, Ranking], methods: list[str]
) -> tuple[list[Column | str], list[list[Any]]]:
    columns: list[Column | str] = ["method"]
    for name in JUDGED.values():
        columns += [Column(f"rank, {name}", better="low", digits=2), Column(f"first, {name}", better="high")]
    beside = APART in methods
    columns += [Column(f"with the {APART}, {name}", better="low", digits=2) for name in JUDGED.values() if beside]
    rows = []
    for method in methods:
        row: list[Any] = [method]
        for metric in JUDGED:
            each = apart[metric]
            known = method in each.methods and each.tables
            row += [each.mean_ranks[method], each.wins(method)] if known else [None, None]
        row += [every[m].mean_ranks[method] if every[m].tables else None for m in JUDGED if beside]
        rows.append(row)
    first = apart["nll"].mean_ranks if apart["nll"].tables else {}
    return columns, sorted(rows, key=lambda row: first.get(row[0], np.inf))


def _test_table(ranked: dict[str, Ranking]) -> tuple[list[str], list[list[Any]]]:
    found = {metric: against(each, OWN) for metric, each in ranked.items()}
    columns = ["method"]
    for name in JUDGED.values():
        columns += [f"{name}: {OWN} lower on", f"{name}: p, Holm"]
    rows = []
    for method in found["nll"]:
        row: list[Any] = [method]
        for metric, each in ranked.items():
            lower = None
            if OWN in each.methods:
                values = each.means[:, [each.methods.index(OWN), each.methods.index(method)]]
                lower = f"{int((values[:, 0] < values[:, 1]).sum())} of {len(values)}"
            p = found[metric][method]
            row += [lower, None if p is None else f"{p:.2g}"]
        rows.append(row)
    return columns, rows


def _comparable(others: dict[str, Ranking]) -> bool:
    """Whether there are tables to show apart, and something to compare on them."""
    return any(each.tables and OWN in each.methods and len(each.methods) > 1 for each in others.values())


def _untried(others: dict[str, Ranking]) -> str:
    tables = list(dict.fromkeys(t for each in others.values() for t in each.tables))
    return (
        f"Settings of {OWN} were tried on development splits of some tables, and not on {len(tables)}: "
        f"{', '.join(tables)}. Mean ranks, and p of the tests against {OWN} (Wilcoxon's, corrected by Holm), on all "
        "tables and on these."
    )


def _beside_table(all_tables: dict[str, Ranking], others: dict[str, Ranking]) -> tuple[list[Column], list[list[Any]]]:
    """Mean ranks and tests on all tables beside those on the tables that no setting was tried on."""
    columns, cells = [Column("method")], list[dict[str, Any]]()
    for metric, name in JUDGED.items():
        pair = {f"all {len(all_tables[metric].tables)}": all_tables[metric]}
        pair |= {f"{len(others[metric].tables)} untried": others[metric]}
        columns += [Column(f"{name}: rank, {which}", "low", digits=2) for which in pair]
        cells += [each.mean_ranks if each.tables else {} for each in pair.values()]
        columns += [Column(f"{name}: p, {which}") for which in pair]
        cells += [{m: None if p is None else f"{p:.2g}" for m, p in against(e, OWN).items()} for e in pair.values()]
    return columns, [[method, *(column.get(method) for column in cells)] for method in cells[0]]


def _overlap(split: Sequence[float]) -> float:
    """n_test/n_train of a split: all that is not tested on is learned from, if only to stop or to calibrate."""
    return split[-1] / sum(split[:-1])


def _explained(records: list[Record], config: dict[str, Any], methods: list[str]) -> str:
    bitten = {r["method"] for r in records if r["clipped"]}
    clipped = [
        f"{m} ({100 * np.mean([r['clipped'] or 0.0 for r in records if r['method'] == m]):.3f} % of test samples)"
        for m in config["methods"]
        if m in bitten
    ]
    apart = f" The {APART}, which the target excepts, is left out, and stands in the last columns."
    return (
        "Methods are ranked on each table by their mean over the seeds that all of them were measured with; ties share "
        f"their ranks; the mean is over tables that have such seeds.{apart if APART in methods else ''}\n\n"
        f"NLL raises probabilities to {config['nll_floor']:g} and divides by their sum, for all methods alike. "
        + (f"This changed a true class's probability in: {', '.join(clipped)}." if clipped else "It changed nothing.")
    )


def _tests(ranked: dict[str, Ranking]) -> str:
    found = [f"{JUDGED[m]} p = {p:.2g}" for m, each in ranked.items() if (p := friedman(each)) is not None]
    alike = f"Friedman's test of all methods being alike: {', '.join(found)}. " if found else ""
    return (
        f"{alike}Each method against {OWN}: on how many tables the latter is lower, and Wilcoxon's signed-rank test "
        "over tables, corrected by Holm for the number of methods; with fewer than six tables it cannot tell anything."
    )


def _gap(records: list[Record], table: str, metric: str, overlap: float) -> Any:
    """Paired by the seeds that both have; None where there are none."""
    own, other = (by_seed(records, metric, table=table, method=m) for m in (OWN, APART))
    shared = [seed for seed in own if seed in other]
    if not shared:
        return None
    return paired_difference([own[s] for s in shared], [other[s] for s in shared], overlap=overlap)


def _costs(
    records: list[Record], config: dict[str, Any], methods: list[str]
) -> tuple[list[Column | str], list[list[Any]]]:
    """Networks, labels, and seconds on each device that a method ran on; scikit-learn's run on the processor."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record["seconds"] is not None:
            device = "cpu" if record["method"] in PEERS else record.get("device") or config.get("device", "unknown")
            found.setdefault((record["method"], device), []).append(record["seconds"])
    devices = list(dict.fromkeys(device for _, device in found))
    rows: list[list[Any]] = []
    for method in methods:
        known = config.get("costs", {}).get(method, {})
        seconds = [float(np.mean(found[method, d])) if (method, d) in found else None for d in devices]
        rows.append([method, known.get("networks"), known.get("labels"), *seconds])
    return ["method", "networks", "labels", *(Column(f"seconds a run, {d}", digits=1) for d in devices)], rows


def _score_row(records: list[Record], table: str, method: str, overlap: float) -> list[Any]:
    found = {c.name: by_seed(records, c.name, table=table, method=method) for c in COLUMNS}
    return [method, *(mean_interval(v.values(), overlap=overlap) if v else None for v in found.values())]
