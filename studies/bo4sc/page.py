"""The report on the first paper's experiments, made from a result file and its figure data."""

from __future__ import annotations

from typing import Any

from calibrant.base.words import count
from calibrant.report import format_number
from studies.bo4sc import figures, table1
from studies.bo4sc.targets import CANDIDATES, verdicts
from studies.common import words
from studies.common.shared import QUICK_SEEDS, SEEDS, add_targets, failures, foot, screen
from studies.common.verdicts import HEADINGS, Records, datasets, difference, methods, pivot
from studies.report import Report, Results, Table

MATCHED = "standard-matched"
"""The id of BO4SC's control: the same training without the weights."""
METRICS_SHOWN = ("ece10", "true_ece", "nll", "accuracy")


def make_report(content: Results, numbers: figures.Numbers) -> Report:
    """Build the report."""
    records, config = content.records, content.config
    size = f"{count(len(datasets(records)), 'set')} with {count(_seeds(records), 'seed')}"
    report = Report(
        "BO4SC: Table 1 and Figures 1 to 3 again",
        f"The experiments of Sanguin, Pakrashi, Viola and Rinaldi (2024) on {size}. Every seed has its own 700 "
        "training, 300 validation and 1,000 test samples. Values are means with 95 % intervals over seeds. The best "
        "value of each column is marked; the ensemble of five and the exact posterior do not take part.",
    )
    report.section("Targets", caveats(content))
    add_targets(report, verdicts(records), judged=enough(records))
    for text in (words.FLOORS, words.UNEQUAL, words.DEFAULTS):
        report.text(text)
    failures(report, records, "These runs failed, so their means are missing.")
    report.section(
        "Table 1",
        "The paper's three methods, with the printed values beside ours. The row of the exact "
        "posterior is the noise floor: the score of perfect confidence on the same test samples.",
    )
    _table(report, table1.beside_paper(records))
    report.section("Every method", "One table for each metric. The folded tables show further metrics.")
    for metric in METRICS_SHOWN:
        _metric(report, records, metric)
    with report.details("Further metrics"):
        for metric in HEADINGS:
            if metric not in METRICS_SHOWN:
                _metric(report, records, metric)
    report.section(
        "Paired differences",
        "The difference of two methods on the same samples, seed by seed. Negative is better, except for accuracy.",
    )
    for method in (m for m in CANDIDATES if m in methods(records)):
        with report.details(f"{method} against every other method"):
            _table(report, table1.paired(records, method))
    _figures(report, numbers, records)
    report.section("What the paper leaves open, and our choices")
    report.table(["left open", "our choice"], words.LEFT_OPEN)
    settings = config["settings"]
    names = list(next(iter(settings.values()), {}))
    rows = [[dataset, *(_plain(setting.get(name)) for name in names)] for dataset, setting in settings.items()]
    caption = f"BO4SC's settings for each set, {origin(content)}. T is steps, η_w is outer_learning_rate."
    report.table(["set", *names], rows, caption)
    report.section("The methods, and the reasons for their settings")
    report.table(["method", "reason"], [[name, words.BASELINES.get(name, "")] for name in methods(records)])
    if {"standard", "standard-stopped", MATCHED, "bo4sc"} <= set(methods(records)):
        report.section("What the printed comparison hides", words.HIDDEN)
    report.section(
        "Costs",
        "Seeds and sets of one shape train as one population, whose time is divided by the number of its members. On a "
        "GPU, sets of different shapes train at the same time, so their seconds are upper bounds.",
    )
    _table(report, table1.costs(records))
    foot(report, content, hidden=("settings",))
    return report


def origin(content: Results) -> str:
    """The origin of BO4SC's settings, in words."""
    search = content.config.get("settings_origin")
    if not isinstance(search, dict):
        return str(search or "of unknown origin")
    return (
        f"chosen on validation data by `{search['command']}` ({count(len(search['seeds']), 'seed')} from "
        f"{search['seeds'][0]}, lowest {search['criterion']}, calibrant {search['calibrant']}, {search['date']})"
    )


def enough(records: Records) -> bool:
    """Whether there are more seeds than in a quick run, so that the targets can be judged."""
    return _seeds(records) > QUICK_SEEDS


def caveats(content: Results) -> str:
    """What a reader must know to interpret the verdicts."""
    run_seeds = {record["seed"] for record in content.records}
    text = "“Significantly” means that the 95 % interval of the paired difference over seeds excludes zero."
    if len(run_seeds) < SEEDS:
        text += f" The targets are set for {SEEDS} seeds, and this run has {len(run_seeds)}, so its intervals are wide."
    if not enough(content.records):
        text += " They cannot decide the targets, which are not judged here."
    if run_seeds & words.SEEN:
        text += f" Seeds of this run were used while the methods were developed; {words.FURTHER} holds others."
    return f"{text} BO4SC's settings were {origin(content)}."


def to_terminal(content: Results) -> str:
    """Table 1 beside ours, and how BO4SC compares with its rivals: one screen of a terminal."""
    records, seeds = content.records, count(_seeds(content.records), "seed")
    compared = "; ".join(_below(records, rival) for rival in ("standard", "isotonic") if rival in methods(records))
    sentence = f"Mean ECE of bo4sc: {compared}. " if compared and "bo4sc" in methods(records) else ""
    if not enough(records):
        sentence += f"{seeds.capitalize()} cannot decide the targets; a run without --quick judges them."
    title = f"Table 1 of Sanguin et al. 2024, and the means of {seeds} here with 95 % intervals"
    return screen(title, table1.in_short(records), sentence or "The page has the targets and their verdicts.")


def _below(records: Records, rival: str) -> str:
    """The number of sets on which BO4SC's mean ECE is below a rival's, here and in the paper."""
    sets, paper = datasets(records), table1.PAPER["ece"]
    here = sum(difference(records, "ece10", name, "bo4sc", rival).value < 0 for name in sets)
    printed = sum(paper["bo4sc"][name] < paper[rival][name] for name in sets)
    return f"below {rival}'s on {here} of {count(len(sets), 'set')} (in the paper: {printed})"


def _figures(report: Report, numbers: figures.Numbers, records: Records) -> None:
    report.section("Figures")
    if not numbers:
        report.text("There are no figures, because the result file has no figure data (`….figures.json`) beside it.")
    for number, (name, (draw, caption)) in enumerate(figures.FIGURES.items(), 1):
        if data := numbers.get(name):
            title = f"Figure {number}, {data['dataset']}, seed {data['seed']}: {caption}"
            report.figure(draw(data), title, f"figure-{number}")
    report.text(
        "Figure 3 in numbers. From it, the paper concludes that most weights of misclassified samples end between 0 "
        "and 0.5, and most others above. Our runs confirm this if both shares exceed one half. The shares are those "
        "of the last step; if the weights oscillate, another step gives other shares."
    )
    _table(report, table1.weights(records), "BO4SC's final weights, as shares of training samples.")


def _metric(report: Report, records: Records, metric: str) -> None:
    name, _, _, meaning = HEADINGS[metric]
    _table(report, pivot(records, metric), f"{name}. {meaning}".strip())


def _table(report: Report, table: Table, caption: str = "") -> None:
    report.table(table.columns, table.rows, caption, group=table.group, exempt=table.exempt)


def _seeds(records: Records) -> int:
    return len({record["seed"] for record in records})


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " × ".join(map(str, value))
    return format_number(value, 4 if value and value < 1 else 0)
