"""The results section of docs/own-models.md: ``calibrant.fit`` compared with plain training."""

from __future__ import annotations

from calibrant.bilevel import SGD
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.recipes import RECIPES, SMALL_RECIPES
from calibrant.metrics import excludes_zero
from calibrant.report import Column, to_markdown
from docs.generate.stored import stored, words
from studies.benchmarks.recipes import table
from studies.networks.page import LABELS, TARGET, NetworkCase, cases_of


def networks() -> str:
    """One row per task and start, and a sentence that names what is better, worse or missed."""
    cases = cases_of(stored("networks").records)
    columns = ["task", "start", "seeds"]
    numbers = [Column(f"NLL, {who}", digits=3) for who in ("`calibrant.fit`", "plain")]
    return (
        to_markdown([*columns, *numbers, "difference of NLL"], [_row(case) for case in cases])
        + "\n\n"
        + _sentences(cases)
    )


def _row(case: NetworkCase) -> list[object]:
    gap = case.difference
    return [
        case.task,
        LABELS[case.start],
        len(case.records),
        case.mean("fit", "nll"),
        case.mean("plain", "nll"),
        f"{gap.value:+.1%} ({gap.low:+.1%} to {gap.high:+.1%})",
    ]


def _sentences(cases: list[NetworkCase]) -> str:
    better, worse, missed = (
        [f"{case.task} ({LABELS[case.start]})" for case in cases if holds(case)]
        for holds in (
            lambda case: excludes_zero(case.difference) == -1,
            lambda case: excludes_zero(case.difference) == 1,
            lambda case: case.difference.high > TARGET,
        )
    )
    return (
        f"The NLL of `calibrant.fit` is significantly lower for: {words(better)}; significantly higher for: "
        f"{words(worse)}. The target is an upper end of the interval of at most {TARGET:+.0%}. It is missed, or there "
        f"are too few seeds to tell, for: {words(missed)}."
    )


def recipes() -> str:
    """The comparison above 4,096 samples."""
    return table(list(stored("recipes").records))


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


SECTIONS = {"networks": networks, "recipes": recipes, "recipe-values": recipe_values}
