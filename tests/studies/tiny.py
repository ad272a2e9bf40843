"""Commands with instant methods, for tests that kill processes."""

import dataclasses
import json
from pathlib import Path

import matplotlib.pyplot  # noqa: F401 (what a process needs is imported before it is forked)
import pytest
import torch
import torch._dynamo
from threadpoolctl import threadpool_limits

from calibrant.methods import METHODS, SelfCalibrated, Standard
from studies.bo4sc import study as bo4sc
from studies.tables import peers
from studies.tables import study as tables
from tests.studies.cases import TINY, eager, write_table


def reproduce(out, **options):
    """`python -m studies reproduce bo4sc` on one set."""
    torch.set_num_threads(1)
    with eager(), pytest.MonkeyPatch.context() as patch:
        known = {name: dataclasses.replace(METHODS[name], method=method) for name, method in TINY.items()}
        patch.setattr("studies.common.synthetic.METHODS", known)
        patch.setattr("studies.bo4sc.figures.RELIABILITY_SET", "bac")
        settings, _ = bo4sc.chosen_settings()
        file = Path(out).with_suffix(".settings.json")
        file.write_text(json.dumps({"bac": settings["bac"] | {"epochs": 10, "hidden": [8, 8]}}))
        bo4sc.reproduce(**{"seeds": 2, "out": out, "device": "cpu", "sets": ("bac",), "settings": file} | options)


def bench(out, **options):
    """`python -m studies bench tables` on two tables."""
    torch.set_num_threads(1)
    data = Path(out).parent / "data"
    data.mkdir(exist_ok=True)
    for name, rows, classes in (("one", 120, 2), ("two", 150, 3)):
        if not (data / f"{name}.csv").exists():
            write_table(data / f"{name}.csv", rows=rows, classes=classes)
    with eager(), threadpool_limits(1), pytest.MonkeyPatch.context() as patch:
        base = Standard(hidden=(4,), epochs=5)
        own = {
            "standard": base,
            "temperature": dataclasses.replace(METHODS["temperature"].method, base=base),
            "self-calibrated": SelfCalibrated(hidden=(4,), epochs=5, folds=2, members=("network", "linear")),
        }
        patch.setattr(tables, "table_methods", lambda: own)
        patch.setitem(peers.BOOSTING, "max_iter", 5)
        names = [*own, "hgb"]
        tables.STUDY.run(**{"data": data, "seeds": 2, "methods": names, "out": out, "device": "cpu"} | options)
