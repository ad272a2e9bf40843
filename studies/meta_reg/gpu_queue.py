"""Make the missing runs of a long list, several at once on one GPU, until the time is up.

``python -m studies.meta_reg.gpu_queue LIST --data DIR --work DIR --out DIR``. A store starts with the
runs of ``results/NAME.json``, so only the others are made. A run that the time cuts off keeps a checkpoint in the work
folder, and the same command continues it. ``--out`` gets one result file for each store, which replaces that in
``results``, and the logits of all new networks in parts. ``--dry-run`` counts the runs and trains nothing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrant.base.atomic_write import whole_file
from calibrant.methods.catalogue import TABLE_3
from studies.common.runs import Planned
from studies.common.study import tell_user
from studies.images import load_parts
from studies.meta_reg.paper import paper
from studies.meta_reg.plan import Setup, runs
from studies.meta_reg.study import STUDY, training_plan

MARGIN = 20.0
"""Seconds for the files that are written at the end."""
TINY = "tiny-imagenet"


@dataclass(frozen=True)
class Rows:
    """Some methods and seeds of one data set and recipe, and the store that gets their runs.

    ``minutes`` is about how long a run takes: with less time left, none is started, except to continue a checkpoint.
    """

    store: str
    dataset: str
    methods: tuple[str, ...]
    seeds: int
    recipe: str = "short"
    minutes: float = 1.0


PRINTED, PRINTED_TINY = (tuple(paper()["table1"][name]) for name in ("cifar10", TINY))
CIFARS = ("cifar10", "cifar100")
LISTS: dict[str, tuple[Rows, ...]] = {
    TINY: (
        Rows(f"meta-reg-{TINY}", TINY, (*PRINTED_TINY, "ce-ts", "ce-average-ts", "focal-control", "recommended"), 1),
        Rows(f"meta-reg-{TINY}", TINY, ("ce", "ce-ts", "focal", "flg-sece", "recommended"), 3),
    ),
    "seeds": (
        *(Rows(f"meta-reg-{name}", name, (*PRINTED, "flg"), 5) for name in CIFARS),
        *(Rows("meta-reg-ablation", name, ("gamma-sece", "flg-sece-one-step"), 3) for name in CIFARS),
        Rows("meta-reg-table3", "cifar100", tuple(TABLE_3), 1),
    ),
    "logits": tuple(Rows(f"recommended-{name}", name, ("ce-average-ts", "recommended"), 5) for name in CIFARS),
    "paper-recipe": (
        Rows("meta-reg-350", "cifar10", ("focal", "flg-sece"), 1, "paper", 20.0),
        Rows("meta-reg-350", "cifar100", ("ce", "ce-ts", "recommended"), 1, "paper", 20.0),
    ),
}
"""Lists of runs by name, in the order in which they are made. ``logits`` repeats stored runs to keep their logits."""


@dataclass(frozen=True)
class Where:
    """The folders of a queue, and settings that make its runs small for tests."""

    data: Path
    work: Path
    results: Path = Path("results")
    model: str | None = None
    epochs: int | None = None

    def planned(self, rows: Rows) -> tuple[Setup, list[Planned]]:
        """The setup of some rows and all their runs, finished or not."""
        setup = Setup(rows.dataset, self.data, self.model, rows.recipe, self.epochs)
        return setup, runs(setup, rows.methods, rows.seeds)

    def folder(self, rows: Rows) -> Path:
        """The folder of a store, which starts with the stored runs."""
        folder, stored = self.work / rows.store, self.results / f"{rows.store}.json"
        folder.mkdir(parents=True, exist_ok=True)
        if stored.exists() and not (folder / "results.json").exists():
            shutil.copyfile(stored, folder / "results.json")
        return folder

    def missing(self, rows: Rows) -> int:
        """The number of runs that are not finished."""
        return len(STUDY.open(self.folder(rows)).missing([key for key, _ in self.planned(rows)[1]]))


def unpack(data: Path) -> None:
    """Turn the zip parts of Tiny-ImageNet in a folder into one file of pixels, which is read faster; once."""
    parts, packed = sorted(data.glob(f"{TINY}-*.zip")), data / f"{TINY}.npz"
    if packed.exists() or not parts:
        return
    images = data / "unpacked"
    for archive in parts:
        shutil.unpack_archive(archive, images)
    arrays: dict[str, np.ndarray] = {}
    for name, part in zip(("train", "test"), load_parts(TINY, images), strict=True):
        arrays |= {f"x_{name}": part.inputs.permute(0, 2, 3, 1).numpy(), f"y_{name}": part.labels.numpy()}
    with whole_file(packed) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def work_through(listed: Sequence[Rows], where: Where, *, until: float, left: float, device: str = "auto") -> None:
    """Make the missing runs in order; several processes can do so at once.

    Parameters
    ----------
    until : when to stop, in seconds since 1970
    left : seconds for which this machine can be used in all, in this and later calls
    """
    end = time.time() + left
    for rows in listed:
        folder = where.folder(rows)
        started = any((folder / "checkpoints").rglob("*.safetensors"))
        enough = end - time.time() > 60 * rows.minutes
        if time.time() < until and where.missing(rows) and (enough or started):
            setup, planned = where.planned(rows)
            minutes = (until - time.time()) / 60
            try:
                STUDY.make(training_plan(setup, planned, device, minutes, shared=True), folder)
            except ValueError as error:
                tell_user(str(error))  # the time was up before the first run of this store was finished


def merge(listed: Sequence[Rows], where: Where, out: Path, megabytes: float) -> None:
    """Write one result file for each store, and the new logits in zip parts."""
    out.mkdir(parents=True, exist_ok=True)
    stores = {rows.store: where.folder(rows) for rows in listed}
    for name, folder in stores.items():
        store = STUDY.open(folder)
        if store.current:
            shutil.copyfile(STUDY.export(store), out / f"{name}.json")
    logits = [path for folder in stores.values() for path in sorted((folder / "logits").glob("*.npz"))]
    logits.sort(key=lambda path: not {"recommended", "average"} & set(path.stem.split("-")))
    for number, part in enumerate(_parts(logits, megabytes * 1e6), 1):
        with zipfile.ZipFile(out / f"logits-{number}.zip", "w", zipfile.ZIP_STORED) as content:
            for path in part:
                content.write(path, path.name)


def _parts(paths: Sequence[Path], size: float) -> Iterator[list[Path]]:
    """Groups of files up to this size together, in order; a larger file is a group of its own."""
    part: list[Path] = []
    for path in paths:
        if part and sum(own.stat().st_size + 500 for own in (*part, path)) > size:
            yield part
            part = []
        part.append(path)
    if part:
        yield part


def main(arguments: Sequence[str]) -> None:
    """Start the workers of one call, wait for them, and merge what is finished."""
    begin = time.time()
    parser = argparse.ArgumentParser(description="Missing runs of the second paper, several at once on one GPU.")
    parser.add_argument("list", choices=list(LISTS))
    parser.add_argument("--data", type=Path, required=True, help="the folder with the images of all data sets")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the stores; keep it between calls")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=560.0, help="the time of this call")
    parser.add_argument("--left", type=float, help="the time of this and later calls; default: that of this call")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=15.0, help="the size of one part of the logits")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", help="another network, for tests")
    parser.add_argument("--epochs", type=int, help="fewer epochs, for tests")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    listed, left = LISTS[options.list], options.left or options.seconds
    where = Where(options.data, options.work, options.results, options.model, options.epochs)
    if options.until is not None:
        work_through(listed, where, until=options.until, left=left, device=options.device)
        return
    unpack(options.data)
    if options.dry_run:
        for rows in listed:
            about = f"{rows.store}, {rows.dataset}, {rows.recipe} recipe"
            print(f"{about}: {where.missing(rows)} of {len(where.planned(rows)[1])} runs are missing")
        return
    for rows in listed:
        where.folder(rows)
    until = begin + options.seconds - MARGIN
    call = [sys.executable, "-m", __spec__.name if __spec__ else __name__, *arguments, "--until", str(until)]
    for worker in [subprocess.Popen(call) for _ in range(options.workers)]:
        worker.wait()
    merge(listed, where, options.out, options.megabytes)


if __name__ == "__main__":
    main(sys.argv[1:])
