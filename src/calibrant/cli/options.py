"""Options that several commands share, with their help texts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Device(StrEnum):
    """The device for computations."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


On = Annotated[Device, typer.Option(help="Device; auto uses a GPU if there is one.")]
Decimal = Annotated[str, typer.Option(help="Decimal mark of numbers in text files: a point or a comma.")]
Thousands = Annotated[str, typer.Option(help="Mark between thousands in text files.", show_default="none")]
Encoding = Annotated[str, typer.Option(help="Encoding of text files, such as cp1252.")]
