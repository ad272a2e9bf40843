"""All commands of ``python -m studies``: the study behind each, and the name of its experiment in result files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Command(NamedTuple):
    """The name of an experiment, and the module and the name of its :class:`studies.common.study.Study`."""

    experiment: str
    module: str
    study: str = "STUDY"


COMMANDS = {
    "reproduce bo4sc": Command("bo4sc", "studies.bo4sc.study"),
    "reproduce meta-reg": Command("meta-reg", "studies.meta_reg.study"),
    "sweep bo4sc": Command("bo4sc-grid", "studies.bo4sc.grid"),
    "sweep meta-reg": Command("meta-reg", "studies.meta_reg.search"),
    "ablate bo4sc": Command("bo4sc-ablation", "studies.bo4sc.ablation"),
    "ablate meta-reg": Command("meta-reg", "studies.meta_reg.study", "ABLATION_STUDY"),
    "ablate tables": Command("tables-ablation", "studies.tables.ablation"),
    "bench tables": Command("tables", "studies.tables.study"),
}


def experiment_of(config: Mapping[str, Any]) -> str | None:
    """The experiment of a result file, by its config, or None. Old files of `bench tables` do not name it."""
    if "experiment" not in config and {"split", "nll_floor"} <= config.keys():
        return "tables"
    name = config.get("experiment")
    return name if name in [command.experiment for command in COMMANDS.values()] else None


def command_of(experiment: str) -> str:
    """The command that writes the results of an experiment."""
    return "python -m studies " + next(name for name, command in COMMANDS.items() if command.experiment == experiment)
