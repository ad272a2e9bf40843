"""The report on users' networks: paired differences of NLL to plain training with a temperature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from calibrant.metrics import Estimate, mean_interval
from calibrant.report import Column, Report, Results, Verdict
from calibrant.report.results import Record
from studies.common.shared import foot

TARGET = 0.01
"""The largest accepted upper end of the paired difference, as a share of the rival's mean NLL."""
LABELS = {"scratch": "from scratch", "tuned": "fine-tuned"}


class NetworkCase(NamedTuple):
    """All seeds of one task with one kind of start."""

    task: str
    start: str
    records: Sequence[Record]

    def mean(self, who: str, name: str) -> float:
        """Return the mean of a score over seeds."""
        return sum(r[who][name] for r in self.records) / len(self.records)

    @property
    def difference(self) -> Estimate:
        """NLL of `calibrant.fit` minus that of plain training, as a share of the latter's mean, with its interval."""
        scale = self.mean("plain", "nll")
        return mean_interval([(r["fit"]["nll"] - r["plain"]["nll"]) / scale for r in self.records])


def cases_of(records: Sequence[Record]) -> list[NetworkCase]:
    """Group the records by task and start."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["task"], record["start"]), []).append(record)
    return [NetworkCase(task, start, own) for (task, start), own in groups.items()]


def tell(results: Results) -> Report:
    """Return the report: verdicts, and one row per task and start."""
    cases, stories = cases_of(results.records), results.config["stories"]
    given = results.config["epochs"].items()
    told = ", ".join(f"{count or 'its default number of'} epochs {LABELS[start]}" for start, count in given)
    counts = results.config.get("repeats", dict.fromkeys(LABELS, 1)).items()  # files before repeats have one training
    repeats = ", ".join(f"{count} training{'s' if count > 1 else ''} {LABELS[start]}" for start, count in counts)
    report = Report(
        "Your own networks: calibrant.fit and plain training",
        f"`calibrant.fit` trains for {told}; its other settings are the defaults. Plain training is Adam with a "
        "one-cycle schedule, at the better of two learning rates by validation NLL. It keeps the state with the lowest "
        "validation NLL and fits a temperature. Both get the same processor time on one thread. "
        f"Scores are means of {repeats} per seed. Intervals are 95 %.",
    )
    report.section("Verdicts")
    report.verdicts(list(verdicts(cases)))
    report.section(
        "Scores on test data",
        "Differences are paired by seed and relative to plain training. Below zero `calibrant.fit` is better.",
    )
    columns: list[Column | str] = ["task", "start", "seeds", "networks", "NLL, fit", "NLL, plain", "difference of NLL"]
    columns += ["smooth ECE, fit", "smooth ECE, plain", "accuracy, fit", "accuracy, plain", Column("seconds", digits=1)]
    report.table(columns, [row(case) for case in cases])
    report.section("Tasks")
    report.table(["task", "what it is"], [[name, story] for name, story in stories.items()])
    foot(report, results)
    return report


def row(case: NetworkCase) -> list[Any]:
    """Return one line of the table."""
    pairs = [case.mean(who, name) for name in ("nll", "smooth_ece", "accuracy") for who in ("fit", "plain")]
    found = [r["networks"] for r in case.records]  # a list per record; a number in files before repeats
    networks = sorted({count for own in found for count in (own if isinstance(own, list) else [own])})
    head = [case.task, LABELS[case.start], len(case.records), ", ".join(map(str, networks))]
    return [*head, *pairs[:2], case.difference, *pairs[2:], case.mean("fit", "seconds")]


def verdicts(cases: Sequence[NetworkCase]) -> Iterator[Verdict]:
    """Judge whether the upper end of each difference is within the target."""
    for case in cases:
        if len(case.records) < 2:
            continue
        own = case.difference
        measured = f"{own.value:+.1%} ({own.low:+.1%} to {own.high:+.1%}), {len(case.records)} seeds"
        statement = f"{case.task}, {LABELS[case.start]}: upper end of the NLL difference at most {TARGET:.0%}"
        yield Verdict(statement, measured, own.high <= TARGET)
