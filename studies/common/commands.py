"""All commands of ``python -m studies``: the study behind each, and the name of its experiment in result files."""

from __future__ import annotations

from typing import NamedTuple


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
    "bench tables": Command("tables", "studies.tables.study"),
}


def command_of(experiment: object) -> str | None:
    """The command that writes the results of an experiment; None for a name that is not an experiment's."""
    names = [name for name, command in COMMANDS.items() if command.experiment == experiment]
    return f"python -m studies {names[0]}" if names else None
