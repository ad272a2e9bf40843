"""The page of the second paper: its results section, and the names that it mentions."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from calibrant.experiments.meta_reg.docs import BEGIN, END, results_section, update
from calibrant.experiments.meta_reg.plan import known_methods
from calibrant.experiments.meta_reg.study import read_all

PAGE = Path(__file__).parents[3] / "docs" / "meta-regularisation.md"


def test_the_results_section_is_replaced_and_the_rest_stays(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nformer numbers\n{END}\nafter\n")
    for _ in range(2):  # the second time replaces the first
        update(page, [finished / "results.json"])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "former numbers" not in text
    assert text.count("### Targets") == 1
    assert "2 seeds of `ce`, `ce-ts`, `flg-sece`, `recommended`." in text
    assert "not yet measured" in text
    assert "4.81 ± 0.12" in text
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no results section"):
        update(page, [finished / "results.json"])


def test_duplicate_runs_count_once_and_searches_have_own_tables(finished: Path) -> None:
    results = read_all([finished / "results.json"] * 2)
    assert len(results.records) == 8
    tried = [r | {"method": "flg-sece-h-0.5", "nll_val": 0.0} for r in results.records if r["method"] == "flg-sece"]
    section = results_section(results._replace(records=results.records + tried))
    before, _, after = section.partition("### Settings of `flg-sece` on the validation part")
    assert "h-0.5" not in before
    assert "Lowest NLL: h 0.5." in after


def test_the_page_has_a_results_section() -> None:
    text = PAGE.read_text()
    assert text.index(BEGIN) < text.index(END)


@pytest.mark.parametrize("name", re.findall(r"`(calibrant\.[A-Za-z_.]+)[`\[]", PAGE.read_text()))
def test_names_in_the_page_exist(name: str) -> None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return
    pytest.fail(f"there is no {name}")


def test_methods_in_the_page_exist() -> None:
    command = re.search(r"--methods ([a-z0-9. -]+?) --", PAGE.read_text())
    assert command is not None
    assert set(command[1].split()) <= known_methods().keys()
