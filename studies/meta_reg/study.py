"""`studies reproduce meta-reg` and `ablate meta-reg`: make the missing runs, and write the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from calibrant.methods import Method
from studies.common.keys import Key
from studies.common.options import Device, Option
from studies.common.progress import StudyProgress
from studies.common.records import resolve_device
from studies.common.runs import Planned
from studies.common.shared import settings_of
from studies.common.store import Store
from studies.common.study import Plan, Study, tell_user
from studies.images import download_missing
from studies.meta_reg.data import DATASETS
from studies.meta_reg.page import tell, to_terminal
from studies.meta_reg.plan import ABLATION, FIRST, RECIPES, Setup, known_methods, runs, trained
from studies.meta_reg.training import EVERY, OutOfTime, train
from studies.meta_reg.variants import variants
from studies.report import Record

NAME = "meta-reg"
QUICK_EPOCHS, QUICK_SEEDS, QUICK_LIMIT = 12, 2, 2_000
"""Defaults of a quick study: epochs, seeds, and images if they are not digits.

2,000 are the fewest that leave an image of each of Tiny-ImageNet's 200 classes in every part.
"""
TRIAL_EPOCHS, TRIAL_SEEDS, ABLATION_SEEDS = 3, 1, 3
"""Defaults of a quick search or ablation, which have many runs, and the seeds of a full ablation."""

Minutes = Annotated[
    float | None, Option("Stop after this many minutes; run the same command again to continue.", least=0.0)
]
Shared = Annotated[
    bool,
    Option("Other programs use the device: leave these training times out of comparisons.", names=("--shared-device",)),
]


def chosen_setup(
    *,
    dataset: Annotated[
        str | None, Option("Image data set; default: cifar10, or digits with --quick.", choices=tuple(DATASETS))
    ] = None,
    data: Annotated[
        str | Path | None, Option("Folder with the files of the data set, as published or as downloaded archives.")
    ] = None,
    download: Annotated[bool, Option("Download the published files into --data if they are not there.")] = False,
    model: Annotated[
        str | None, Option("resnet18, resnet50, wide-resnet or small-cnn; the default depends on the data set.")
    ] = None,
    recipe: Annotated[
        str, Option("short: 30 epochs, one-cycle. paper: 350 epochs, state of lowest error.", choices=tuple(RECIPES))
    ] = "short",
    epochs: Annotated[int | None, Option("Epochs; default: those of the recipe.", least=1)] = None,
    limit: Annotated[
        int | None, Option("Number of training images, with a fifth as many test images; default: all.", least=1)
    ] = None,
    noisy_labels: Annotated[
        str | Path | None, Option("For cifar10n-…: an .npz file with the labels of CIFAR-10N.", exists=True)
    ] = None,
    quick: Annotated[
        bool, Option("A small study of minutes on two cores, of digits or of 2,000 images of --dataset.")
    ] = False,
    trial: bool = False,
) -> Setup:
    """The setup that options ask for, after its files were downloaded if that is wanted.

    ``trial`` is a search or an ablation, which has many runs: with ``quick``, it is smaller than a study, and its
    labels are the published ones.
    """
    if dataset is None:
        dataset = "digits" if quick and data is None else "cifar10"
    noisy = dataset in DATASETS and DATASETS[dataset].noisy is not None
    if trial and noisy:
        raise ValueError(f"--dataset must have its published labels in a search or an ablation; got {dataset!r}.")
    if quick:
        model, epochs = model or "small-cnn", epochs or (TRIAL_EPOCHS if trial else QUICK_EPOCHS)
        limit = limit or (None if dataset == "digits" else QUICK_LIMIT)
    folder = None if data is None else Path(data).expanduser()
    if download and folder is not None and dataset in DATASETS and DATASETS[dataset].files:
        download_missing("cifar10" if noisy else dataset, folder)
    return Setup(dataset, folder, model, recipe, epochs, limit, None if noisy_labels is None else Path(noisy_labels))


def plan(
    *,
    methods: Annotated[
        Sequence[str] | None, Option("Ids of methods; default: all except those of the paper's Table 3.")
    ] = None,
    seeds: Annotated[
        int | None, Option("Number of seeds; default: 5 for the methods of the targets, 2 for the others.", least=1)
    ] = None,
    quick: bool = False,
    device: Device = "auto",
    minutes: Minutes = None,
    shared: Shared = False,
    checkpoint_every: float = EVERY,
    **options: Any,
) -> Plan:
    """Reproduce Tables 1 to 3 and Figures 2 to 5 of the second paper (γ-Net, SECE), with claims and targets."""
    setup = chosen_setup(quick=quick, **options)
    if quick:
        seeds = seeds or QUICK_SEEDS
        methods = methods or (None if DATASETS[setup.dataset].noisy else FIRST)
    planned = runs(setup, methods, seeds)
    return training_plan(setup, planned, device, minutes, shared=shared, checkpoint_every=checkpoint_every)


def ablation_plan(
    *,
    seeds: Annotated[int | None, Option("Number of seeds; default: 3, or 1 with --quick.", least=1)] = None,
    quick: bool = False,
    device: Device = "auto",
    minutes: Minutes = None,
    **options: Any,
) -> Plan:
    """Compare variants of the second paper's methods: φ, outer loss and rate, hypergradient, moving average, γ."""
    setup = chosen_setup(quick=quick, trial=True, **options)
    planned = runs(setup, [*ABLATION, *variants()], seeds or (TRIAL_SEEDS if quick else ABLATION_SEEDS))
    return training_plan(setup, planned, device, minutes)


def training_plan(
    setup: Setup,
    planned: Sequence[Planned],
    device: str = "auto",
    minutes: float | None = None,
    *,
    shared: bool = False,
    checkpoint_every: float = EVERY,
) -> Plan:
    """Train the planned runs.

    Parameters
    ----------
    minutes : stop after this many minutes; the next call continues the current run from its checkpoint
    shared : whether other programs use the device; the training times of these runs are then not compared
    checkpoint_every : seconds between two checkpoints of a run
    """
    where = resolve_device(device)
    config = {
        "sets": [setup.dataset],
        "model": setup.network,
        "recipe": repr(setup.trained_by()),
        "device": str(where),
    }

    def make(store: Store, missing: list[Key]) -> None:
        """Make the missing runs in order.

        A calibrator and its network share one training: the first missing method of a network makes the records of the
        others too. A second pass takes the runs of processes that were killed.
        """
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        methods = dict(planned)
        with StudyProgress(missing) as progress:
            for key in (run_key for _ in range(2) for run_key in store.take(missing)):
                together = [other for other in missing if _same_network(key, other, methods) and not store.has(other)]
                if together[0] != key:
                    continue  # another process trains this network
                progress.start(together)
                try:
                    records = train(
                        [(other, methods[other]) for other in together],
                        setup.prepared(key["seed"]).to(where),
                        device=where,
                        folder=store.checkpoint(key),
                        logits_folder=store.folder / "logits",
                        seconds=checkpoint_every,
                        deadline=deadline,
                        shared=shared,
                    )
                except OutOfTime:
                    return tell_user("Time is up. Run the same command again to continue.")
                store.add(records)
                for run_key, record in records.items():
                    progress.finish([run_key])
                    tell_user(f"[{len(missing) - len(progress.left)}/{len(missing)}] {_line(run_key, record)}")
        return None

    return Plan([key for key, _ in planned], config, make, folder=f"{NAME}-{setup.dataset}")


def _same_network(key: Key, other: Key, methods: dict[Key, Method]) -> bool:
    return key["seed"] == other["seed"] and trained(methods[key]) == trained(methods[other])


def _line(key: Key, record: Record) -> str:
    """One finished run as a line for the terminal."""
    about = f"{DATASETS[key['dataset']].title}, {key['method']}, seed {key['seed']}"
    if record["failure"]:
        return f"{about}: failed ({record['failure']})"
    numbers = "error {error:.2%}, NLL {nll:.3f}, ECE {ece:.2%} (floor {floor:.2%})".format(**record)
    return f"{about}: {numbers}, {record['seconds']:.0f} s"


STUDY = Study(
    NAME,
    axes=("dataset", "model", "recipe", "epochs", "limit", "method", "seed"),
    plan=plan,
    shares=(chosen_setup,),
    order=lambda config: {
        "dataset": DATASETS,
        **dict.fromkeys(("model", "recipe", "limit")),
        "method": known_methods(),
        "seed": None,
    },
    extend=lambda config, records: {"seeds": sorted({r["seed"] for r in records}), "methods": settings_of(records)},
    report=lambda results, path: tell(results),
    screen=to_terminal,
    needed=("sets", "methods", "seeds"),
)
ABLATION_STUDY = replace(STUDY, plan=ablation_plan, folder=f"{NAME}-ablation")
reproduce, ablate = STUDY.run, ABLATION_STUDY.run
