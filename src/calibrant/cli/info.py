"""`calibrant info`: versions, device and optional packages, for bug reports."""

from __future__ import annotations

from typing import Any

import typer

from calibrant.cli.evaluate import AsJson
from calibrant.cli.shell import print_json

OPTIONAL = {
    "pandas": "tables: train, predict, files of predictions",
    "pyarrow": "tables: Parquet files",
    "jinja2": "report: report pages",
    "matplotlib": "plots",
    "pillow": "vision: image files",
    "onnx": "onnx: export to ONNX",
    "lightning": "lightning: its callback",
    "transformers": "huggingface: the Trainer",
    "tensorboard": "tensorboard: its tracker",
    "mlflow": "mlflow: its tracker",
    "wandb": "wandb: its tracker",
}
"""Optional packages, and what needs them; the word before a colon is the extra, as in calibrant[tables]."""


def info(as_json: AsJson = False) -> None:
    """Show versions, the device, and which optional packages are installed."""
    from calibrant.report.provenance import machine, versions

    facts: dict[str, Any] = {"versions": versions(), "machine": machine()}
    facts["optional"] = {name: _version(name) for name in OPTIONAL}
    if as_json:
        print_json(facts)
        return
    lines = [*facts["versions"].items(), *((key, str(value)) for key, value in facts["machine"].items())]
    lines += [(name, version or f"not installed ({OPTIONAL[name]})") for name, version in facts["optional"].items()]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:{width}}  {value}")


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
