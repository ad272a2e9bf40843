"""The nouns and the walks of docs/architecture.md are those of the code."""

from __future__ import annotations

import re
import traceback

import pytest
import torch
from torch import nn

import calibrant
from calibrant.methods import BO4SC

from .source import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def drawn(heading):
    """The rows of a walk: a file, and the functions of it that follow each other or replace each other."""
    block = PAGE.split(f"### {heading}")[1].split("```")[1]
    rows, file = [], ""
    for line in block.strip().splitlines():
        parts = re.match(r"(\S+\.py)?\s+(\w+(?:, \w+)*)  ", line)
        file = parts[1] or file
        rows.append((file, tuple(parts[2].split(", "))))
    return rows


FIT, REPRODUCE = drawn("`calibrant.fit`"), drawn("`python -m studies reproduce bo4sc`")


def folder_of(file):
    return ROOT if file.startswith("studies/") else PACKAGE


def calls_above(monkeypatch, owner, name, train):
    """The package's calls above each call of ``owner.name`` while ``train`` runs, as (file, function)."""
    stacks, function = set(), getattr(owner, name)

    def watched(*args, **settings):
        frames = [f for f in traceback.extract_stack() if f.filename.startswith(str(PACKAGE))]
        stacks.add(tuple((frame.filename[len(str(PACKAGE)) + 1 :], frame.name) for frame in frames))
        return function(*args, **settings)

    monkeypatch.setattr(owner, name, watched)
    train()
    return stacks


def some_rows(count):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def test_drawn_functions_are_defined():
    for file, names in FIT + REPRODUCE:
        source = (folder_of(file) / file).read_text(encoding="utf-8")
        assert [name for name in names if not re.search(rf"^ *(def|class) {name}\b", source, re.MULTILINE)] == []


def test_nouns_are_classes_of_the_named_files():
    rows = re.findall(r"^\| [A-Z][^|]* \| [^|]* \| ([^|]*) \| `([^|`]*)` \|$", PAGE, re.MULTILINE)
    assert len(rows) > 15
    for classes, place in rows:
        home = folder_of(place) / place
        files = [home] if home.is_file() else sorted(home.glob("*.py"))
        source = "\n".join(file.read_text(encoding="utf-8") for file in files)
        assert [
            name for name in re.findall(r"`(\w+)`", classes) if not re.search(rf"^class {name}\b", source, re.M)
        ] == []


@pytest.mark.filterwarnings("ignore:train and val are the same")
@pytest.mark.parametrize("way", [0, -1], ids=["training", "sweep"])
def test_reproduce_has_every_drawn_call_and_no_other(monkeypatch, way):
    """From ``fit_group`` on. A row of two names shows two ways."""
    data, method = some_rows(12), BO4SC(epochs=4, steps=2)
    stacks = calls_above(
        monkeypatch, torch.autograd, "grad", lambda: calibrant.fit(nn.Linear(2, 2), data, data, method=method)
    )
    start = next(k for k, (_, names) in enumerate(REPRODUCE) if "fit_group" in names)
    path = tuple((file, names[way]) for file, names in REPRODUCE[start:])
    assert any(stack[-len(path) :] == path for stack in stacks), stacks


@pytest.mark.filterwarnings("ignore")
def test_fit_has_every_drawn_call_and_no_other(monkeypatch):
    train, val = some_rows(4200), some_rows(50)
    stacks = calls_above(
        monkeypatch, torch.Tensor, "backward", lambda: calibrant.fit(nn.Linear(2, 2), train, val, epochs=1)
    )
    assert tuple((file, name) for file, (name,) in FIT) in stacks, stacks
