"""The path from the command to a gradient that CONTRIBUTING.md draws is the one that runs."""

from __future__ import annotations

import re
import traceback

import pytest
import torch

import calibrant
from calibrant.methods import BO4SC

from .source import PACKAGE, ROOT


def drawn():
    """The rows of the drawing: a file, and the functions of it that follow each other or replace each other."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split("### From the command to a gradient")[1].split("```")[1]
    rows, file = [], ""
    for line in block.strip().splitlines():
        found = re.match(r"(\S+\.py)?\s+(\w+(?:, \w+)*)  ", line)
        file = found[1] or file
        rows.append((file, tuple(found[2].split(", "))))
    return rows


@pytest.fixture(scope="module")
def stacks():
    """The calls above every gradient of a short BO4SC run, as (file, function)."""
    found, grad = set(), torch.autograd.grad

    def watched(*args, **given):
        frames = traceback.extract_stack()
        own = [frame for frame in frames if frame.filename.startswith(str(PACKAGE))]
        found.add(tuple((frame.filename[len(str(PACKAGE)) + 1 :], frame.name) for frame in own))
        return grad(*args, **given)

    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", watched)
        calibrant.fit(torch.nn.Linear(2, 2), data, data, method=BO4SC(epochs=4, steps=2))
    return found


def test_drawn_functions_are_defined():
    rows = drawn()
    assert len(rows) > 9
    for file, names in rows:
        folder = ROOT if file.startswith("studies/") else PACKAGE
        source = (folder / file).read_text(encoding="utf-8")
        assert [name for name in names if not re.search(rf"^ *(def|class) {name}\b", source, re.MULTILINE)] == []


@pytest.mark.filterwarnings("ignore:train and val are the same")
@pytest.mark.parametrize("way", [0, -1], ids=["training", "sweep"])
def test_drawn_calls_lead_to_a_gradient(stacks, way):
    """From ``fit_group`` on, the drawing has every call and no other. A row of two names shows two ways."""
    rows = drawn()
    start = next(k for k, (_, names) in enumerate(rows) if "fit_group" in names)
    path = tuple((file, names[way]) for file, names in rows[start:])
    assert any(stack[-len(path) :] == path for stack in stacks), stacks
