"""The report on hostile data: the targets, the comparison with an earlier version, and all scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.metrics import Estimate
from calibrant.report import Column, Report, Results, Verdict
from studies.common.shared import count, failures, foot
from studies.common.summary import cell
from studies.common.verdicts import Case, Records, datasets, difference, judge, mean
from studies.common.verdicts import not_significantly_above_zero as not_above
from studies.hostile.contenders import BEFORE, FREQUENCIES, MEMBERS, OWN

COLUMNS = {
    "nll": Column("NLL", "low", 4),
    "ece15": Column("ECE-15", "low", 3),
    "floor_self15": Column("floor", digits=3, note="ECE-15 of a calibrated model with the same confidences."),
    "accuracy": Column("accuracy", "high", 3),
    "seconds": Column("seconds", digits=1),
    "processor_seconds": Column("processor s", digits=1, note="Processor time of the fit, over all threads."),
    "memory": Column("MB", digits=0, note="Memory beyond the data, at its peak."),
}
BEST = (
    f"`{OWN}` is SelfCalibratedClassifier with its default settings; `{BEFORE}` is an earlier version of it. The best "
    "member is the pool member with the lowest mean NLL on its own. It is chosen by its test scores, so it looks "
    "slightly better than it is."
)
SECONDS, TIMES = 10.0, 10.0
"""The largest accepted fit time: in processor seconds, which other processes hardly change, or as a multiple of that of
scikit-learn's network."""


def best_member(records: Records, dataset: str) -> str | None:
    """Return the pool member with the lowest mean NLL alone; None if none was measured."""
    means = {name: mean(records, "nll", dataset, name).value for name in MEMBERS}
    known = {name: value for name, value in means.items() if not math.isnan(value)}
    return min(known, key=lambda name: known[name]) if known else None


def verdicts(records: Records) -> list[Verdict]:
    """Judge whether the classifier is worse than the class frequencies or one of its members, and how long it takes."""
    names = datasets(records)

    def against(dataset: str, rival: str | None) -> tuple[Estimate | None, bool | None]:
        if _failed(records, dataset, OWN):
            return None, False
        if rival is None:
            return None, None
        gap = difference(records, "nll", dataset, OWN, rival)
        return gap, not_above(gap)

    members = {name: best_member(records, name) for name in names}
    times = {name: _time(records, name) for name in names}
    return [
        judge(
            "NLL not significantly above that of the class frequencies (paired difference)",
            [Case(name, *against(name, FREQUENCIES)) for name in names],
        ),
        judge(
            "NLL not significantly above that of the best member (paired difference)",
            [Case(f"{name} ({members[name]})", *against(name, members[name])) for name in names if members[name]],
        ),
        judge(
            f"fit time at most {SECONDS:g} s or {TIMES:g} × MLPClassifier's (processor seconds)",
            [Case(name, *times[name]) for name in names if times[name][0] is not None],
            digits=1,
        ),
    ]


def _failed(records: Records, dataset: str, method: str) -> bool:
    return any(r["failure"] for r in records if r["dataset"] == dataset and r["method"] == method)


def _time(records: Records, dataset: str) -> tuple[float | None, bool | None]:
    own, other = (mean(records, "processor_seconds", dataset, name).value for name in (OWN, "mlp"))
    limit = SECONDS if math.isnan(other) else max(SECONDS, TIMES * other)
    return (None, None) if math.isnan(own) else (own, own <= limit)


def with_costs(records: Records) -> list[dict[str, Any]]:
    """Return records with the peak memory in megabytes, and with processor seconds.

    Records of earlier runs have only the seconds of a fit on one thread, which are at least as many.
    """
    return [
        {
            **r,
            "memory": None if r.get("peak_memory") is None else r["peak_memory"] / 1e6,
            "processor_seconds": r.get("processor_seconds", r.get("seconds")),
        }
        for r in records
    ]


def make_report(results: Results) -> Report:
    """Return the report: verdicts, the comparison with an earlier version, and a table per case."""
    config, records = results.config, with_costs(results.records)
    cases: dict[str, str] = config["cases"]
    report = Report(
        "Difficult data",
        f"{count(len(cases), 'case')}, {count(len(config['seeds']), 'seed')}: mean and 95 % interval (Student's t). "
        "Each seed draws new training rows and 2,000 clean test rows, and fits new classifiers.",
    )
    report.verdicts(verdicts(records))
    report.section("Before and after", BEST)
    report.table(*overview(cases, records))
    report.section("Every case")
    for name, story in cases.items():
        with report.details(f"{name}: {story}"):
            report.table(["method", *COLUMNS.values()], _scores(records, name, list(config["methods"])))
    failures(report, records, "Cases that a method cannot handle have no scores for it.")
    report.section("Contenders")
    report.table(["method", "what it is"], [[m, story] for m, story in config["methods"].items()])
    foot(report, results, hidden=("cases", "methods"))
    return report


def overview(cases: Mapping[str, str], records: Records) -> tuple[list[Column | str], list[list[Any]]]:
    """Return the header and lines of the table that has one line per case."""
    head: list[Column | str] = ["case", "what is wrong"]
    head += [Column(f"NLL, {name}", digits=4) for name in (BEFORE, OWN, FREQUENCIES)]
    head += ["best member", Column("NLL, best member", digits=4), Column("ECE, before", digits=3)]
    head += [Column("ECE, now", digits=3), Column("floor", digits=3), Column("s, before", digits=1)]
    head += [Column("s, now", digits=1), Column("MB, before", digits=0), Column("MB, now", digits=0)]
    return head, [_line(records, name, story) for name, story in cases.items()]


def _line(records: Records, name: str, story: str) -> list[Any]:
    member = best_member(records, name)
    means = [cell(records, "nll", name, method) for method in (BEFORE, OWN, FREQUENCIES)]
    own = cell(records, "floor_self15", name, OWN)
    return [
        name,
        story,
        *means,
        member,
        member and cell(records, "nll", name, member),
        *(cell(records, "ece15", name, method) for method in (BEFORE, OWN)),
        own,
        _plain(records, "seconds", name, BEFORE),
        _plain(records, "processor_seconds", name, OWN),
        *(_plain(records, "memory", name, method) for method in (BEFORE, OWN)),
    ]


def _plain(records: Records, metric: str, name: str, method: str) -> float | None:
    value = cell(records, metric, name, method)
    return None if value is None else value.value


def _scores(records: Records, name: str, methods: Sequence[str]) -> list[list[Any]]:
    measured = [m for m in methods if any(r["method"] == m and r["dataset"] == name for r in records)]
    costs = ("seconds", "processor_seconds", "memory")
    return [
        [m, *(_plain(records, c, name, m) if c in costs else cell(records, c, name, m) for c in COLUMNS)]
        for m in measured
    ]
