"""Sections of the studies that are scripts, of the user's networks, and of the second paper's images."""

from __future__ import annotations

from calibrant.bilevel import SGD
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.recipes import RECIPES, SMALL_RECIPES
from docs.generate.stored import RESULTS, stored
from studies import guarantees, hostile, label_noise, networks
from studies.benchmarks import recipes, wide
from studies.meta_reg import docs as meta_reg
from studies.meta_reg.study import STUDY as META_REG
from studies.report import to_markdown


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
