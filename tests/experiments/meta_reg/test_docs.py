"""The page of the second paper: its results section, and the names that it mentions."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from calibrant.experiments.meta_reg.docs import BEGIN, END
from calibrant.experiments.meta_reg.plan import known_methods

DOCS = Path(__file__).parents[3] / "docs"
PAGE, RESULTS = DOCS / "meta-regularisation.md", DOCS / "meta-regularisation-results.md"


def test_the_page_has_a_results_section() -> None:
    text = RESULTS.read_text()
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
