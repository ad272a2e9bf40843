"""What README.md says: its example runs, its tables and its words are those of the stored results."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from calibrant.data import SETS
from calibrant.experiments.bo4sc import page
from calibrant.experiments.bo4sc.targets import self_calibrated_targets
from calibrant.experiments.common.verdicts import difference, mean
from calibrant.experiments.label_noise.page import tell as tell_noise
from calibrant.experiments.tables import page as table_report
from calibrant.experiments.tables.data import DEVELOPMENT
from calibrant.experiments.tables.page import targets
from calibrant.report import by_seed, excludes_zero, paired_difference, read_results

ROOT = Path(__file__).parents[1]


def stored(name):
    return read_results(ROOT / "results" / f"{name}.json")


def shown(section):
    """A section of README as one line."""
    return " ".join((ROOT / "README.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0].split())


FIRST = "The first paper, measured again"


def test_readme_example_runs():
    text = (ROOT / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize(
    ("section", "file", "print_it", "at_least"),
    [
        ("The first paper, measured again", "bo4sc", page.to_terminal, 40),
        ("Labels that are wrong", "bo4sc-noise", lambda results: tell_noise(results).to_markdown(), 16),
        ("Twenty tables", "bo4sc-tables", table_report.to_terminal, 18),
    ],
)
def test_readme_shows_the_stored_experiments(section, file, print_it, at_least):
    """A command with ``--from results/….json`` prints the tables; no number in them is typed by hand."""
    text = (ROOT / "README.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    printed = print_it(stored(file))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) >= at_least
    assert [row for row in rows if row not in printed] == []


def test_readmes_words_have_the_stored_numbers():
    text = (ROOT / "README.md").read_text().split("What we read from it")[1].split("\n## ")[0]
    printed = "".join(page.to_terminal(stored(f"bo4sc{k}")) for k in ("", "-more-seeds"))
    found = re.findall(r"\d+\.\d+ ± \d+\.\d+", text)
    assert len(found) == 4
    assert [number for number in found if number not in printed] == []


def test_readmes_words_on_the_hundred_seeds_and_the_earlier_method_are_in_the_records():
    text, further, records = shown(FIRST), stored("bo4sc-more-seeds").records, stored("bo4sc").records
    gap = difference(further, "ece10", "bac", "bo4sc", "isotonic")
    assert excludes_zero(gap) == 1
    assert f"significantly above isotonic regression's, by {gap.value:.3f}" in text
    for name in SETS:
        assert excludes_zero(difference(further, "nll", name, "self-calibrated", "ensemble")) == -1
    assert [verdict.holds for verdict in self_calibrated_targets(further)] == [True] * 5
    means = [[mean(records, "ece10", name, m).value for m in ("instance-weights", "bo4sc")] for name in SETS]
    assert sum(own < other for own, other in means) == 4
    assert "lower mean ECE-10 of the two on four of the five sets" in text


def test_readmes_words_on_the_ablation_are_in_the_records():
    text, records = shown(FIRST), stored("bo4sc-ablation").records

    def gap(method, against, metric):
        """The paired difference of each seed's mean over the sets."""

        def by(name):
            sets = [by_seed(records, metric, method=name, dataset=d) for d in SETS]
            return {seed: sum(own[seed] for own in sets) / len(sets) for seed in sets[0]}

        return paired_difference(by(method), by(against))

    assert excludes_zero(gap("l2 alone", "bo4sc", "true_ece")) == -1
    assert "a learned L2 strength per layer alone does more for calibration than 700 weights" in text
    assert all(excludes_zero(gap("implicit", "bo4sc", metric)) <= 0 for metric in ("true_ece", "nll"))
    parts = [r["method"] for r in records if r["group"] == "self-calibrated" and r["method"] != "self-calibrated"]
    worth = {part: gap(part, "self-calibrated", "nll").value for part in parts}
    assert max(worth, key=worth.get) == "without refit"
    assert "of the recommended method's parts, learning from all labels is worth most" in text


def test_readme_shows_the_stored_benchmark():
    """``python -m benchmarks --markdown`` prints the table; no number in it is typed by hand."""
    command = [sys.executable, "-m", "benchmarks", "--markdown"]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert table in (ROOT / "README.md").read_text()


def test_readme_says_what_the_weights_do():
    content, said = stored("bo4sc"), shown(FIRST)
    worse, better = said.partition("the weights make ECE-10 significantly worse on ")[2].split(
        " and significantly better on "
    )
    numbers = {
        name: difference(content.records, "ece10", name, "bo4sc", page.MATCHED) for name in content.config["settings"]
    }
    for name, gap in numbers.items():
        own, other = (worse, better[:100]) if excludes_zero(gap) > 0 else (better[:100], worse)
        assert excludes_zero(gap) != 0
        assert f"{abs(gap.value):.3f} on {name}" in own
        assert name not in other
    signs = [excludes_zero(gap) for gap in numbers.values()]
    assert worse.startswith("three") == (signs.count(1) == 3)
    assert better.startswith("two") == (signs.count(-1) == 2)
    assert page.weights_doing(content.records) in page.to_terminal(content)
    for name in set(numbers) - {"bac"}:
        standard, matched, own = (
            mean(content.records, "ece10", name, m).value for m in ("standard", page.MATCHED, "bo4sc")
        )
        assert standard - matched > (standard - own) / 2  # "most or all of the gain"


def test_readme_claims_of_wrong_labels_what_the_stored_run_shows():
    """Better than the two rivals that it names, on every set and at both rates; of the rate alone nothing."""
    said = shown("Labels that are wrong")
    assert "`self-calibrated` beats both on every set. It is ten networks" in said
    kept = stored("bo4sc-noise")
    for rate in (0.2, 0.4):
        own = [r for r in kept.records if r["rate"] == rate]
        for name in kept.config["sets"]:
            for rival in ("temperature-stopped", "bo4sc"):
                assert excludes_zero(difference(own, "nll", name, "self-calibrated", rival)) == -1


def test_readme_says_what_became_of_the_targets_on_tables():
    """Every target is told with its verdict, as the report prints it; and so are the tables that no setting saw."""
    results, said = stored("bo4sc-tables"), shown("Twenty tables")
    assert len(DEVELOPMENT & set(results.config["tables"])) == 8
    assert len(set(results.config["tables"]) - DEVELOPMENT) == 12
    for verdicts in targets(results).values():
        for verdict in verdicts:
            if verdict.holds is not None:
                assert f"| {verdict.statement} " in said
                assert verdict.note in said
