"""Tests of the tables and sentences that ``python -m docs.generate`` writes into README.md."""

from __future__ import annotations

import re

import pytest

from calibrant.metrics import Estimate
from docs.generate import images, readme
from docs.generate.stored import paragraph, signs, stored
from studies.meta_reg.variants import variants

LINK = re.compile(r"\]\((docs/[a-z-]+\.md)(#[a-z-]+)?\)")


def rows(text: str) -> list[list[str]]:
    """The cells of the first table's rows, without its heading."""
    lines = next(block for block in text.split("\n\n") if block.startswith("|")).splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("part", [readme.on_tables, images.images, readme.noise, readme.paper])
def test_a_table_says_its_rule_and_links_to_all_rows(part):
    """A reader sees which rows are shown, on how many seeds or tables, and where the others are."""
    text = " ".join(part().split())
    assert re.search(r"[Ss]hown: (the|all)", text)
    assert re.search(r"\d+ (seeds|tables)", text)
    assert LINK.search(text)
    assert part() == part()


def test_images_shown_are_all_methods_with_enough_seeds():
    shown = [row[0].strip("`") for row in rows(images.images())]
    enough = []
    for name in images.SETS:
        runs = [r["method"] for r in stored(f"meta-reg-{name}").records if not r.get("failure")]
        enough.append({m for m in runs if runs.count(m) >= images.SHOWN and m not in variants()})
    assert set(shown) == set.intersection(*enough)
    assert len(shown) == len(set(shown)) > 1


def test_images_show_the_mean_of_the_seeds():
    ece = [r["ece"] for r in stored("meta-reg-cifar10").records if r["method"] == "ce"]
    (row,) = (row for row in rows(images.images()) if row[0] == "`ce`")
    assert row[3].startswith(f"{100 * sum(ece) / len(ece):.2f} ± ")


def test_best_rivals_of_every_column_are_shown():
    shown = {row[0].strip("`") for row in rows(readme.on_tables())}
    for each in readme.rank_columns(readme.tables.on_tables(), "all", "untried").values():
        assert set([m for m in each.mean_ranks if m not in readme.OURS][: readme.BEST]) <= shown


def test_wrong_labels_use_seeds_that_development_did_not_see():
    seen, unseen = ({r["seed"] for r in stored(name).records} for name in ("bo4sc-noise", readme.NOISE))
    assert not seen & unseen
    assert not {r["seed"] for r in stored("bo4sc").records} & {r["seed"] for r in stored(readme.PAPER).records}


def test_signs_name_the_sets_of_each_direction():
    low, high, around = (Estimate((a + b) / 2, a, b, 0.95, "t") for a, b in ((-2, -1), (1, 2), (-1, 1)))
    assert signs({"a": low, "b": low}) == "significantly lower on both sets"
    assert signs({"a": high, "b": high, "c": high}) == "significantly higher on all 3 sets"
    assert signs({"a": low}) == "significantly lower on a"
    mixed = signs({"a": low, "b": around, "c": high, "d": low})
    assert mixed == "significantly lower on a and d and significantly higher on c and not significantly different on b"


def test_paragraphs_are_wrapped_and_skip_empty_sentences():
    assert paragraph("One.", "", "Two.") == "One. Two."
    assert max(map(len, paragraph(*["Some words."] * 50).splitlines())) <= 150
