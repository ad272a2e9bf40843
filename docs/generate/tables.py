"""Sections on wrong labels, tables, speed, networks, and of the studies that write their own tables."""

from __future__ import annotations

from collections import Counter

from calibrant.bilevel import SGD
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.recipes import RECIPES, SMALL_RECIPES
from calibrant.metrics import excludes_zero
from docs.generate.stored import RESULTS, bullets, stored, words
from studies import guarantees, hostile, label_noise, networks
from studies.benchmarks import recipes, wide
from studies.benchmarks.harness import markdown
from studies.common.synthetic import POOLED
from studies.common.verdicts import Records, datasets, difference
from studies.label_noise import JUDGED as SETS
from studies.label_noise import noise_targets
from studies.meta_reg import docs as meta_reg
from studies.meta_reg.study import STUDY as META_REG
from studies.report import to_markdown
from studies.tables.compared import JUDGED, Compared, compared
from studies.tables.page import to_terminal
from studies.tables.peers import OURS, OWN
from studies.tables.ranks import Ranking, against

RIVALS = ("standard-stopped", "temperature-stopped", "ensemble", "bo4sc")
TABLES = "bo4sc-tables"
LEVEL = 0.05


def noise_sentences() -> list[str]:
    """On how many sets `self-calibrated` is significantly better, rival by rival."""
    results = stored("bo4sc-noise")
    rates_by_finding: dict[str, list[str]] = {}
    for rate in filter(None, results.config["rates"]):
        at_rate = [r for r in results.records if r["rate"] == rate]
        numbers = {f"`{rival}`": _better(at_rate, rival) for rival in RIVALS}
        than = [words([r for r, n in numbers.items() if n == k]) + f" on {k}" for k in sorted(set(numbers.values()))]
        finding = f"{', than '.join(than)} of {len(datasets(at_rate))} sets"
        rates_by_finding.setdefault(finding, []).append(f"{100 * rate:g} %")
    better = "of the training labels flipped, `self-calibrated` has a significantly lower NLL than"
    sentences = [f"With {words(rates)} {better} {than}." for than, rates in rates_by_finding.items()]
    return [*sentences, *_pooled()]


def _pooled() -> list[str]:
    """Whether the pool meets its target, where its runs are stored and decide it."""
    seeds_by_finding: dict[str, list[str]] = {}
    for name, which in (
        ("bo4sc-noise", "seeds"),
        ("bo4sc-noise-more-seeds", "seeds that were not used in development"),
    ):
        results = stored(name)
        judged = [v for v in noise_targets(results.records) if v.statement.startswith(POOLED)]
        if judged and judged[0].holds is not None:
            above = "nowhere" if judged[0].holds else f"({judged[0].note})"
            seeds_by_finding.setdefault(above, []).append(f"with {_number_of_seeds(results.records)} {which}")
    return [
        f"With clean and with flipped labels, the NLL of `{POOLED}`, the default of `SelfCalibratedClassifier`, is "
        f"{above} significantly above the better of `bo4sc`'s and `standard-stopped`'s on {words(SETS)}, "
        f"{words(where)}."
        for above, where in seeds_by_finding.items()
    ]


def _number_of_seeds(records: Records) -> str:
    """The least and the largest number of the pool's seeds on a judged set at one rate."""
    cases = Counter((r["dataset"], r["rate"]) for r in records if r["method"] == POOLED and r["dataset"] in SETS)
    return " to ".join(str(n) for n in sorted({min(cases.values()), max(cases.values())}))


def _better(records: Records, rival: str) -> int:
    gaps = [difference(records, "nll", name, "self-calibrated", rival) for name in datasets(records)]
    return sum(excludes_zero(gap) == -1 for gap in gaps)


def on_tables() -> Compared:
    """The scores of all methods on the twenty tables."""
    return compared(stored(TABLES))


def tables() -> str:
    """What ``python -m studies bench tables --from`` prints."""
    return to_terminal(stored(TABLES)).strip()


def rank_sentences() -> list[str]:
    """Mean ranks and tests on all tables, and on those that no setting was tried on."""
    scores = on_tables()
    sentences = [_in_words(scores.rankings(), "On all {n} tables")]
    if others := scores.untried():
        sentences.append(_in_words(others.rankings(), "On the {n} tables on which no setting was tried"))
    return sentences


def _in_words(rankings: dict[str, Ranking], where: str) -> str:
    parts = []
    for metric, each in rankings.items():
        means = each.mean_ranks
        rival = min((m for m in means if m not in OURS), key=means.__getitem__)
        different, tested = tests(each)
        parts.append(
            f"{means[OWN]:.2f} in {JUDGED[metric]} (best rival: `{rival}`, {means[rival]:.2f}; significantly different "
            f"from {different} of {tested} rivals)"
        )
    tables = len(rankings["nll"].tables)
    return f"{where.format(n=tables)}, the mean rank of `{OWN}` is {' and '.join(parts)}."


def tests(each: Ranking) -> tuple[int, int]:
    """From how many rivals `self-calibrated` differs significantly, and how many were tested."""
    p_values = [p for method, p in against(each, OWN).items() if p is not None and method not in OURS]
    return sum(p < LEVEL for p in p_values), len(p_values)


def speed() -> str:
    """The benchmark, as ``python -m studies.benchmarks --markdown`` prints it."""
    return markdown(stored("bench").records)


def recipe_values() -> str:
    """One row per kind: the optimiser, its settings and the length of a run."""
    rows = [_recipe(method) for row in (RECIPES, SMALL_RECIPES) for method in row.values()]
    return to_markdown(["kind", "optimiser", "largest rate", "weight decay", "gradient norm", "length"], rows)


def _recipe(method: AveragedNetwork) -> list[object]:
    optimizer = method.optimizer
    nesterov = ", Nesterov momentum " + f"{optimizer.momentum:g}" if isinstance(optimizer, SGD) else ""
    return [
        method.kind,
        type(optimizer).__name__ + nesterov,
        f"{method.rate:g}",
        f"{optimizer.weight_decay:g}",
        "any" if optimizer.clip_norm is None else f"at most {optimizer.clip_norm:g}",
        f"{method.steps:,} steps or {method.passes} epochs, whichever is more",
    ]


SECTIONS = {
    "noise-sentences": lambda: bullets(noise_sentences()),
    "tables": lambda: tables() + "\n\n" + bullets(rank_sentences()),
    "bench": speed,
    f"written by {meta_reg.__name__}": lambda: meta_reg.results_section(META_REG.read(meta_reg.result_files(RESULTS))),
    "hostile": lambda: hostile.results_section(stored("hostile").records),
    "networks": lambda: networks.table(stored("networks").records),
    "noise-tables": lambda: label_noise.tables(stored("bo4sc-noise").records),
    "noise-unseen": lambda: label_noise.tables(stored("bo4sc-noise-more-seeds").records),
    "guarantees-targets": lambda: guarantees.targets(stored("guarantees").records),
    "guarantees-rules": lambda: guarantees.rules_table(stored("guarantees").records),
    "guarantees-bounds": lambda: guarantees.bounds_table(stored("guarantees").records),
    "guarantees-sets": lambda: guarantees.sets_table(stored("guarantees").records),
    "recipes": lambda: recipes.table(list(stored("recipes").records)),
    "recipes-gpu": lambda: recipes.table(list(stored("recipes-gpu").records)),
    "recipe-values": recipe_values,
    "wide": lambda: wide.table(list(stored("bench").records)),
}
