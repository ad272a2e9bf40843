"""The page on what of each paper is here: its commands parse, and it shows what was not run."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys

import pytest

from docs.generate import coverage
from studies.__main__ import parse

from .pages import DOCS, ROOT

PAGES = ("coverage-of-papers.md", "meta-regularisation.md", "first-paper.md")
COMMAND = re.compile(r"(?:^|`)(python -m (?:studies|pytest|docs)[^`\n#|]*)", re.MULTILINE)
COMMANDS = sorted(
    {
        found.strip()
        for page in PAGES
        for found in COMMAND.findall((DOCS / page).read_text(encoding="utf-8"))
        if "…" not in found
    }
)


class Parsed(Exception):
    """Raised in place of running a command whose options are right."""


def parse_module(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the options of a module's ``main``; nothing is run."""
    original = argparse.ArgumentParser.parse_known_args

    def only_parse(self, *given, **named):
        original(self, *given, **named)
        raise Parsed

    module = importlib.import_module(name)
    assert callable(module.main)
    if "ArgumentParser" in (ROOT / (name.replace(".", "/") + ".py")).read_text(encoding="utf-8"):
        monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", only_parse)
        with pytest.raises(Parsed):
            module.main(words)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *words = shlex.split(
        command.replace(" DIR", f" {ROOT}").replace("labels.npz", str(ROOT / "pyproject.toml"))
    )[2:]
    monkeypatch.setattr(sys, "argv", [module, *words])
    if module == "pytest":
        assert all((ROOT / path).is_file() for path in words)
    elif module == "studies":
        parse(words)
    else:
        parse_module("docs.generate.__main__" if module == "docs.generate" else module, words, monkeypatch)


def test_a_wrong_option_does_not_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        parse(["reproduce", "meta-reg", "--no-such-option"])
    with pytest.raises(SystemExit):
        parse_module("studies.meta_reg.gpu_queue", ["no-such-list"], monkeypatch)


def test_every_equation_has_a_row() -> None:
    for text, last in ((coverage.table("first"), 14), (coverage.table("second"), 12)):
        assert set(re.findall(r"^\| Eq\. \((\d+)\) ", text, re.MULTILINE)) == {str(n) for n in range(1, last + 1)}


def test_missing_runs_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = {("cifar10", "ce"): 5, ("cifar10", "mdca"): 1}
    monkeypatch.setattr(coverage, "seeds_of", lambda name, methods: [seeds.get((name, m), 0) for m in methods])
    assert coverage.runs("images ce") == "CIFAR-10 5 seeds; CIFAR-100 not run; Tiny-ImageNet not run"
    assert coverage.on_one_set("cifar10", ["ce", "mdca"]) == "1 to 5 seeds"
    assert coverage.on_one_set("cifar10", ["ce", "mbls"]) == "1 of 2 methods"
