"""`studies reproduce meta-reg` and `ablate meta-reg`: make the missing runs, and write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from calibrant.report import Report, Results, write_results
from calibrant.report.results import Record
from studies.common.command import begin, open_store, stored_records, tell_user, usable_folder
from studies.common.command import export as export_results
from studies.common.configs import combined
from studies.common.contents import KINDS, in_order, position, read_own, settings_of
from studies.common.dry_run import list_runs
from studies.common.keys import Key, name_of
from studies.common.progress import StudyProgress
from studies.common.records import resolve_device
from studies.common.shared import made
from studies.common.store import Line, Store
from studies.images import download_missing
from studies.meta_reg.data import DATASETS
from studies.meta_reg.groups import SMALL
from studies.meta_reg.noisy import has_noisy_labels
from studies.meta_reg.page import tell, to_terminal
from studies.meta_reg.plan import ABLATION, QUICK, Planned, Setup, known_methods, runs, trained
from studies.meta_reg.quick import SEEDS as QUICK_SEEDS
from studies.meta_reg.quick import Sizes, chosen_dataset, quick_sizes
from studies.meta_reg.resuming import EVERY, OutOfTime
from studies.meta_reg.training import train
from studies.meta_reg.variants import variants

NAME = "meta-reg"
SMALL_EPOCHS = 15
ABLATION_SEEDS = 3


def reproduce(
    *,
    dataset: str | None = None,
    data: str | Path | None = None,
    model: str | None = None,
    recipe: str = "short",
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    limit: int | None = None,
    noisy_labels: str | Path | None = None,
    device: str = "auto",
    quick: bool = False,
    out: str | Path | None = None,
    source: Sequence[str | Path] | None = None,
    minutes: float | None = None,
    fresh: bool = False,
    checkpoint_every: float = EVERY,
    export: str | Path | None = None,
    shared: bool = False,
    download: bool = False,
    dry_run: bool = False,
) -> Path | str:
    """Train the missing runs of the study, and write its report; returns the path of the report.

    Parameters
    ----------
    dataset : a name of ``DATASETS``; default: cifar10, or digits if ``quick`` is true and ``data`` is None
    data : the folder with its files; not needed for digits
    model, recipe : names of a network and of a recipe; default: the data set's network and the short recipe
    methods : ids of methods; default: all except those of Table 3
    seeds : the number of seeds per method; default: five for the methods of the targets, two for the others
    epochs, limit : the number of epochs and of training images; default: the recipe's epochs, and all images. With up
        to 10,000 images, the defaults are those of a small study: the methods of the targets, two seeds, 15 epochs
    noisy_labels : the file with the labels of CIFAR-10N, for its data sets
    quick : few methods, seeds and epochs; takes about a minute on two cores for digits. Other data sets are reduced to
        2,000 training images, and the default network is small-cnn
    out : folder for the store, results and report; default: ``out/meta-reg-<dataset>``
    source : result files or stores of this study, of one or several data sets; the report is made without training
    minutes : stop after this many minutes; the next call continues the current run from its checkpoint
    fresh : repeat the runs that the folder already holds
    checkpoint_every : seconds between two checkpoints of a run
    shared : whether other programs use the device; the training times of these runs are then not compared
    export : also write the results to this file, such as ``results/meta-reg-cifar10.json``
    download : fetch the published files into ``data`` if they are not there
    dry_run : train and write nothing, and return a list of the runs with their states as text. Stored runs are those of
        ``source``, or of ``out``
    """
    dataset = chosen_dataset(dataset, data, quick)
    if quick:
        model, seeds, epochs, limit = quick_sizes(dataset, Sizes(model, seeds, epochs, limit))
    elif limit is not None and limit <= SMALL:
        seeds, epochs = seeds or QUICK_SEEDS, epochs or SMALL_EPOCHS
    if quick or (limit is not None and limit <= SMALL):
        methods = methods or (None if has_noisy_labels(dataset) else QUICK)
    folder = Path(out) if out is not None else Path("out") / f"{NAME}-{dataset}"
    paths = [Path(path) for path in source or ()]
    if paths and not dry_run:
        return write_report(paths, usable_folder(folder), export=export)
    labels = None if noisy_labels is None else Path(noisy_labels)
    if not dry_run:
        usable_folder(folder)
    setup = Setup(dataset, data_folder(dataset, data, download and not dry_run), model, recipe, epochs, limit, labels)
    planned = runs(setup, methods, seeds)
    if dry_run:
        return tell_plan(planned, folder, paths, fresh=fresh)
    results = make_runs(
        setup,
        planned,
        folder,
        device=device,
        minutes=minutes,
        fresh=fresh,
        checkpoint_every=checkpoint_every,
        shared=shared,
    )
    return write_report([results], folder, export=export)


def tell_plan(planned: Sequence[Planned], folder: Path, paths: Sequence[Path], *, fresh: bool = False) -> str:
    """List the planned runs and which of them the files ``paths``, or else the folder's store, hold."""
    keys = [key for key, _ in planned]
    if fresh:
        return list_runs(keys, [], NAME)
    return list_runs(keys, read_all(paths).records if paths else stored_records(folder, NAME), NAME)


def make_runs(
    setup: Setup,
    planned: Sequence[Planned],
    folder: Path,
    *,
    device: str = "auto",
    minutes: float | None = None,
    fresh: bool = False,
    checkpoint_every: float = EVERY,
    shared: bool = False,
) -> Path:
    """Make the planned runs that the folder's store lacks; returns the path of the result file.

    The other arguments are those of :func:`reproduce`.
    """
    where = resolve_device(device)
    store = open_store(folder, NAME, device=where)
    keys = [key for key, _ in planned]
    config = {
        "experiment": NAME,
        "sets": [setup.dataset],
        "model": setup.network,
        "recipe": repr(setup.trained_by()),
        "device": str(where),
        **made(),
    }
    by_name = {key.name: key for key in keys}

    def expected(line: Line) -> Key | None:
        return by_name.get(name_of(line["key"].items()))

    missing = begin(store, config, keys, expected=expected, fresh=fresh)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    whole = work(
        store, planned, missing, setup, device=where, deadline=deadline, seconds=checkpoint_every, shared=shared
    )
    if not whole:
        tell_user("Time is up. Run the same command again to continue.")
    if not store.current:
        raise ValueError("No run was finished; run the same command again to continue, or allow more --minutes.")
    return export_results(store, arrange)


def data_folder(dataset: str, data: str | Path | None, download: bool) -> Path | None:
    """The folder of a data set, after its files were downloaded if that is wanted and they are missing."""
    folder = None if data is None else Path(data).expanduser()
    if download and folder is not None and dataset in DATASETS and DATASETS[dataset].files:
        download_missing("cifar10" if has_noisy_labels(dataset) else dataset, folder)
    return folder


def ablate(
    *,
    dataset: str | None = None,
    data: str | Path | None = None,
    model: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    limit: int | None = None,
    out: str | Path | None = None,
    quick: bool = False,
    **settings: Any,
) -> Path | str:
    """Compare variants of the methods; arguments are those of :func:`reproduce`, with three seeds by default.

    ``quick`` uses one seed, three epochs and small-cnn, with 600 of scikit-learn's digits, or 2,000 training images of
    another data set.
    """
    dataset = chosen_dataset(dataset, data, quick)
    if has_noisy_labels(dataset):
        raise ValueError(f"--dataset must have its published labels in an ablation; got {dataset!r}.")
    sizes = Sizes(model, seeds, epochs, limit)
    if quick:
        sizes = quick_sizes(dataset, sizes, trial=True)
    sizes = sizes._replace(seeds=sizes.seeds or ABLATION_SEEDS)
    methods = [*ABLATION, *variants()]
    folder = Path("out") / f"{NAME}-ablation" if out is None else out
    return reproduce(dataset=dataset, data=data, methods=methods, out=folder, **sizes._asdict(), **settings)


def work(
    store: Store,
    planned: Sequence[Planned],
    missing: Sequence[Key],
    setup: Setup,
    *,
    device: torch.device,
    deadline: float | None,
    seconds: float,
    shared: bool = False,
) -> bool:
    """Make the missing runs in order; returns False if the time was up before the last one.

    A calibrator and its network share one training: the first missing method of a network makes the records of the
    others too. A second pass takes the runs of processes that were killed.
    """
    methods = dict(planned)
    prepared, seed = None, None
    with StudyProgress(missing) as progress:
        for key in chain(store.take(missing), store.take(missing)):
            if deadline is not None and time.monotonic() > deadline:
                return False
            together = [
                (other, methods[other])
                for other in missing
                if other["seed"] == key["seed"]
                and trained(methods[other]) == trained(methods[key])
                and not store.has(other)
            ]
            if together[0][0] != key:
                continue  # another process trains this network
            if prepared is None or seed != key["seed"]:
                seed = key["seed"]
                prepared = setup.prepared(seed).to(device)
            progress.start(other for other, _ in together)
            try:
                found = train(
                    together,
                    prepared,
                    device=device,
                    folder=store.checkpoint(key),
                    logits_folder=store.folder / "logits",
                    seconds=seconds,
                    deadline=deadline,
                    shared=shared,
                )
            except OutOfTime:
                return False
            store.add(found)
            for own, record in found.items():
                progress.finish([own])
                tell_user(f"[{len(missing) - len(progress.left)}/{len(missing)}] {_line(own, record)}")
    return True


def _line(key: Key, record: Record) -> str:
    """One finished run as a line for the terminal."""
    about = f"{DATASETS[key['dataset']].title}, {key['method']}, seed {key['seed']}"
    if record["failure"]:
        return f"{about}: failed ({record['failure']})"
    numbers = "error {error:.2%}, NLL {nll:.3f}, ECE {ece:.2%} (floor {floor:.2%})".format(**record)
    return f"{about}: {numbers}, {record['seconds']:.0f} s"


def arrange(results: Results) -> Results:
    """Sort records by set, method and seed, and add the seeds and settings to the config."""
    records = sort_records(results.records)
    told = {"seeds": sorted({r["seed"] for r in records}), "methods": settings_of(records)}
    return results._replace(config=results.config | told, records=records)


def sort_records(records: Sequence[Record]) -> list[Record]:
    """Sort records by set, recipe, method and seed; sets and methods are in the order of the study."""
    order = position(DATASETS, known_methods())
    return in_order(
        records,
        lambda r: (
            order.get(r["dataset"]),
            *(r[name] for name in ("model", "recipe", "limit")),
            order.get(r["method"]),
            *(r[name] for name in ("method", "seed")),
        ),
    )


def read_all(paths: Sequence[Path]) -> Results:
    """Combine result files or stores of this study. If several hold the same run, the first one counts."""
    found = [read_own(path, NAME, arrange) for path in paths]
    records: dict[tuple[Any, ...], Record] = {}
    for results in found:
        for record in results.records:
            records.setdefault(tuple(record[name] for name in KINDS[NAME].identity), record)
    return Results(combined(found), found[0].versions, sort_records(list(records.values())))


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    make_report: Callable[[Results], Report] = tell,
    export: str | Path | None = None,
) -> Path:
    """Write the report from result files or stores, and print its main table, or all of a report other than ``tell``.

    ``export`` is another result file to write.
    """
    results = read_all(paths)
    if export is not None:
        write_results(export, results.config, results.records, results.versions)
    report = make_report(results)
    print(to_terminal(results) if make_report is tell else report.to_markdown())
    return report.write(out)
