"""The report on guarantees: how often rules exceed their risk, and how often sets contain the true class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scipy.stats import beta

from calibrant.metrics import Estimate, mean_interval
from calibrant.report import Column, Report, Results, Verdict
from calibrant.report.results import Record
from studies.common.shared import foot
from studies.guarantees.measures import FIXED, SCORES, TESTS, rule_name

FINALS = {"mean": "mean of the fold models", "refit": "one model of all rows", "split": "a fifth set aside"}


class GuaranteeCase(NamedTuple):
    """The records of one learner, judged for one of its final classifiers."""

    learner: str
    final: str
    records: Sequence[Record]

    @property
    def sets(self) -> list[str]:
        """The synthetic sets of the records; an unfinished study may lack some."""
        return list(dict.fromkeys(r["dataset"] for r in self.records))

    def of(self, dataset: str) -> GuaranteeCase:
        """The same for the data sets drawn from one synthetic set."""
        return self._replace(records=[r for r in self.records if r["dataset"] == dataset])

    def values(self, rule: str, field: str, final: str = "") -> list[Any]:
        """A field of one rule, for each data set."""
        return [r[final or self.final]["rules"][rule][field] for r in self.records]

    def broken(self, rule: str, final: str = "") -> Estimate:
        """The share of data sets whose risk on new data exceeds the bound, with the interval of Clopper and Pearson."""
        pairs = zip(self.values(rule, "risk", final), self.values(rule, "bound", final), strict=True)
        n, count = len(self.records), sum(risk is not None and risk > bound for risk, bound in pairs)
        low = beta.ppf(0.025, count, n - count + 1) if count else 0.0
        high = beta.ppf(0.975, count + 1, n - count) if count < n else 1.0
        return Estimate(count / n, float(low), float(high), 0.95, "Clopper and Pearson")

    def covered(self, score: str, field: str) -> Estimate:
        """The mean coverage or size of sets."""
        return mean_interval([r[self.final]["sets"][score][field] for r in self.records])


def tell(results: Results) -> Report:
    """Build the report: verdicts, tables of rules, and a table of prediction sets."""
    config, cases = results.config, list(cases_of(results.records))
    risks, confidence, coverage = config["risks"], config["confidence"], config["coverage"]
    sets = list(dict.fromkeys(r["dataset"] for r in results.records))
    report = Report(
        "Guarantees from out-of-fold probabilities",
        f"Data sets of {config['rows']} rows with a known posterior ({', '.join(sets)}). Risk and coverage on new data "
        f"are exact, up to the choice of {config['new_rows']:,} new inputs. Intervals are 95 %.",
    )
    report.section("Verdicts")
    report.verdicts([*rule_verdicts(cases, risks, 1 - confidence), *set_verdicts(cases, coverage)])
    report.section(
        "Rejection rules",
        f"`rejection_rule(risk, level={confidence})` promises that at most {1 - confidence:.0%} of the rules are "
        "broken. A rule is broken if its risk on new data is above the target. A data set without a rule counts as not "
        "broken, with nothing accepted. The last column judges the fold models at the same thresholds.",
    )
    headings = [f"{what} ({test})" for test in TESTS for what in ("broken", "accepted")]
    columns: list[Column | str] = ["learner", "classifier", "risk", "data sets", Column("rules found", digits=2)]
    columns += [Column(name, digits=2 if name.startswith("accepted") else 3) for name in headings]
    columns += ["most broken on", Column("broken by fold models")]
    report.table(columns, [rule_row(case, risk) for case in cases for risk in risks])
    report.section(
        "Bounds from out-of-fold rows",
        "At a threshold that is fixed beforehand, Clopper and Pearson give an upper limit of the risk at level "
        f"{confidence}. If rows are independent and new to the model, at most {1 - confidence:.0%} of the data sets "
        "have a higher risk. `fold models` tests whether out-of-fold errors are like errors on new rows. `classifier` "
        "also tests whether the final classifier is no worse than the fold models. `difference` is the risk of the "
        "final classifier minus that of the fold models.",
    )
    named = [Column(f"{what}, threshold {t:g}") for t in FIXED for what in ("fold models", "classifier", "difference")]
    report.table(["learner", "classifier", "data sets", *named], [bound_row(case) for case in cases])
    report.section(
        "Prediction sets",
        f"`predict_set(X, coverage={coverage})` promises this coverage on average over data sets. RAPS has k_reg=1 and "
        "penalty=0.1. The last column names the synthetic set with the lowest mean coverage over all scores.",
    )
    named = [Column(f"{score}: {what}") for score in SCORES for what in ("coverage", "size")]
    report.table(["learner", "classifier", *named, "least covered"], [set_row(case) for case in cases])
    foot(report, results)
    return report


def cases_of(records: Sequence[Record]) -> Iterator[GuaranteeCase]:
    """Group the records by learner and final classifier."""
    for learner in dict.fromkeys(r["learner"] for r in records):
        own = [r for r in records if r["learner"] == learner]
        for final in FINALS:
            if final in own[0]:
                yield GuaranteeCase(learner, final, own)


def rule_row(case: GuaranteeCase, risk: float) -> list[Any]:
    """One row of the table of rules."""
    first = rule_name(TESTS[0], risk)
    found = case.values(first, "found")
    each: list[Any] = []
    for test in TESTS:
        name = rule_name(test, risk)
        each += [case.broken(name), mean_interval(case.values(name, "accepted"))]
    worst = max(case.sets, key=lambda dataset: case.of(dataset).broken(first).value)
    most = case.of(worst).broken(first)
    folds = case.broken(first, "folds") if case.final == "mean" and "folds" in case.records[0] else None
    told = f"{worst}: {most.value:.3f}" if most.value else "none"
    return [case.learner, FINALS[case.final], risk, len(found), sum(found) / len(found), *each, told, folds]


def bound_row(case: GuaranteeCase) -> list[Any]:
    """One row of the table of bounds: how often they are exceeded, and the risk compared with the fold models."""
    cells: list[Any] = []
    for threshold in FIXED:
        name = rule_name("fixed", threshold)
        if "folds" not in case.records[0] or case.final == "split":
            cells += [None, case.broken(name), None]
            continue
        pairs = zip(case.values(name, "risk"), case.values(name, "risk", "folds"), strict=True)
        gaps = [own - other for own, other in pairs if own is not None and other is not None]
        cells += [case.broken(name, "folds"), case.broken(name), mean_interval(gaps) if gaps else None]
    return [case.learner, FINALS[case.final], len(case.records), *cells]


def set_row(case: GuaranteeCase) -> list[Any]:
    """One row of the table of prediction sets."""
    scores = [case.covered(score, what) for score in SCORES for what in ("coverage", "size")]
    least = least_covered([case])
    return [case.learner, FINALS[case.final], *scores, "{2:.3f} on {1}".format(*least) if least else None]


def rule_verdicts(cases: Sequence[GuaranteeCase], risks: Sequence[float], allowed: float) -> Iterator[Verdict]:
    """For each final classifier, judge the rule that is broken most often over all learners, sets and risks.

    The promise is missed if the interval of some learner, set and risk lies above it.
    """
    for final, label in FINALS.items():
        for test in TESTS:
            found = {
                (case.learner, dataset, risk): case.of(dataset).broken(rule_name(test, risk))
                for case in cases
                if case.final == final
                for dataset in case.sets
                for risk in risks
            }
            if found:
                learner, dataset, risk = worst = max(found, key=lambda key: found[key].low)
                measured = f"most: {found[worst].value:.3f} ({learner}, {dataset}, risk {risk:g})"
                statement = f"Rules ({test}), {label}: not significantly more than {allowed:.0%} broken"
                yield Verdict(statement, measured, found[worst].low <= allowed)


def set_verdicts(cases: Sequence[GuaranteeCase], coverage: float) -> Iterator[Verdict]:
    """For each final classifier, judge the lowest coverage over all learners, sets and scores."""
    for final, label in FINALS.items():
        least = least_covered([case for case in cases if case.final == final])
        if least:
            learner, dataset, value, high, score = least
            measured = f"least: {value:.3f} ({learner}, {dataset}, {score})"
            statement = f"Sets, {label}: coverage not significantly below {coverage:.0%}"
            yield Verdict(statement, measured, high >= coverage)


def least_covered(cases: Sequence[GuaranteeCase]) -> tuple[str, str, float, float, str] | None:
    """Learner, set, mean coverage, its upper limit and score with the lowest upper limit; None without intervals."""
    found = [
        (case.learner, dataset, own.value, own.high, score)
        for case in cases
        for dataset in case.sets
        for score in SCORES
        for own in [case.of(dataset).covered(score, "coverage")]
        if not math.isnan(own.high)
    ]
    return min(found, key=lambda entry: entry[3], default=None)
