"""The commands. Each reads its arguments and calls one function of `calibrant.experiments`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from calibrant._version import __version__
from calibrant.cli import calibrate as _calibrate
from calibrant.cli import evaluate as _evaluate
from calibrant.cli.shell import Experiment, Sentences, call


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Criterion(StrEnum):
    """What is least at the setting that a search chooses."""

    bce = "bce"
    nll = "nll"
    ece10 = "ece10"


class ImageData(StrEnum):
    """Images of the second paper's study."""

    cifar10 = "cifar10"
    cifar100 = "cifar100"
    tiny_imagenet = "tiny-imagenet"
    fashion_mnist = "fashion-mnist"
    digits = "digits"
    cifar10n_worse = "cifar10n-worse"
    cifar10n_aggregate = "cifar10n-aggregate"
    cifar10n_random = "cifar10n-random"


class Recipe(StrEnum):
    """How image networks are trained."""

    short = "short"
    paper = "paper"


Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counted from 0.")]
Out = Annotated[Path, typer.Option(file_okay=False, help="Folder for results, figures and report.")]
Sets = Annotated[list[str] | None, typer.Option(help="Names of synthetic sets; all five where not given.")]
On = Annotated[Device, typer.Option(help="Where to compute; auto takes a GPU where there is one.")]
Source = Annotated[
    Path | None,
    typer.Option(
        "--from",
        exists=True,
        dir_okay=False,
        help="Make the report from this result file or store (results.json, results.jsonl) of the same command; train "
        "nothing. Only --out goes with it.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="How many processes work at the same time; by default one, and more beside a GPU."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Run again what --out holds already; by default only missing runs are done.")
]

Images = Annotated[ImageData, typer.Option(help="The images; digits come with scikit-learn and need no --data.")]
Folder = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Folder with the files of the data set, in any usual layout."),
]
NoisyLabels = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="For the data sets cifar10n-…: an .npz file with the labels of CIFAR-10N (worse_label …); --data has the "
        "images of CIFAR-10.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(help="resnet18, resnet50, wide-resnet or small-cnn; by default the one of the data set."),
]
Training = Annotated[
    Recipe, typer.Option(help="short: 30 epochs, one-cycle. paper: 350 epochs, the state of least validation error.")
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs; by default the recipe's.")]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Take so many training images, every class in proportion, and a fifth as many test images. Up to 10,000 "
        "mean a small study: by default few methods, 2 seeds, 6 epochs.",
    ),
]
Export = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Write the results into this file as well, results/meta-reg-cifar10.json say."),
]
Minutes = Annotated[
    float | None, typer.Option(min=0.0, help="Stop after so many minutes; the same command goes on later.")
]
Sources = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        exists=True,
        dir_okay=False,
        help="Make the report from these result files or stores, of one data set or several; train nothing. Only "
        "--out goes with it.",
    ),
]

app = typer.Typer(
    cls=Sentences,
    help="Neural classifiers whose confidence can be believed: calibration as bilevel optimisation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(help="Run a paper's experiments again: results, tables, figures, one HTML report.")
sweep = typer.Typer(help="Search a grid of settings, judged on the validation split only.")
ablate = typer.Typer(help="Compare a method's variants.")
bench = typer.Typer(help="Compare methods on tables, under label noise and on hostile data; test guarantees.")
for _group, _name in ((reproduce, "reproduce"), (sweep, "sweep"), (ablate, "ablate"), (bench, "bench")):
    # A callback keeps a group with a single command a group; a Typer of one command would drop that command's name.
    _group.callback()(lambda: None)
    app.add_typer(_group, name=_name, no_args_is_help=True)


_evaluate.register(app)
_calibrate.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
) -> None:
    pass


@reproduce.command("bo4sc", cls=Experiment)
def reproduce_bo4sc(
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; 20, or 3 with --quick.")] = None,
    out: Out = Path("out/bo4sc"),
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds: minutes on two cores.")] = False,
    device: On = Device.auto,
    settings: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="settings.json of `calibrant sweep bo4sc`; by default those that come with the package. If it has "
            "some of the sets only, name these by --sets.",
        ),
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    methods: Annotated[list[str] | None, typer.Option(help="Ids of methods; all where not given.")] = None,
    sets: Sets = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Table 1 and Figures 1 to 3 of Sanguin et al. 2024, with intervals, noise floors and targets."""
    call(
        "bo4sc.reproduce",
        seeds=seeds,
        out=out,
        quick=quick,
        device=device.value,
        settings=settings,
        first_seed=first_seed,
        methods=methods,
        sets=sets,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@reproduce.command("meta-reg", cls=Experiment)
def reproduce_meta_reg(
    dataset: Images = ImageData.cifar10,
    data: Folder = None,
    model: Network = None,
    recipe: Training = Recipe.short,
    methods: Annotated[
        list[str] | None, typer.Option(help="Ids of methods; by default all but those of the paper's Table 3.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many seeds; by default 5 for the methods of the targets and 2 for the others."),
    ] = None,
    epochs: Epochs = None,
    limit: Limit = None,
    noisy_labels: NoisyLabels = None,
    device: On = Device.auto,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few methods on scikit-learn's digits: about a minute on two cores.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for results, figures and report; by default out/meta-reg-DATASET."),
    ] = None,
    minutes: Minutes = None,
    fresh: Fresh = False,
    shared: Annotated[
        bool, typer.Option("--shared-device", help="Other work runs on the device: leave its times out of comparisons.")
    ] = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Tables 1 to 3 and Figures 2 to 5 of the second paper (γ-Net, SECE), its claims, shifted images and targets."""
    if quick and (data is not None or dataset not in (ImageData.cifar10, ImageData.digits)):
        raise typer.BadParameter(
            "it runs on scikit-learn's digits; leave out --dataset and --data.", param_hint="--quick"
        )
    call(
        "meta_reg.reproduce",
        dataset=dataset.value,
        data=data,
        model=model,
        recipe=recipe.value,
        methods=methods or None,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
        noisy_labels=noisy_labels,
        device=device.value,
        quick=quick,
        out=out,
        minutes=minutes,
        fresh=fresh,
        shared=shared,
        export=export,
        source=source or None,
    )


@sweep.command("bo4sc", cls=Experiment)
def sweep_bo4sc(
    steps: Annotated[list[int] | None, typer.Option(min=1, help="T, inner steps under one hypergradient.")] = None,
    weight_lr: Annotated[list[float] | None, typer.Option(help="η_w, step size of the sample weights.")] = None,
    alpha: Annotated[list[float] | None, typer.Option(help="α of the smooth maximum.")] = None,
    width: Annotated[list[int] | None, typer.Option(min=1, help="Hidden units of each layer.")] = None,
    epochs: Annotated[list[int] | None, typer.Option(min=1, help="Epochs of training.")] = None,
    lr: Annotated[list[float] | None, typer.Option(help="Learning rate of the network.")] = None,
    sets: Sets = None,
    criterion: Annotated[
        Criterion, typer.Option(help="What the chosen setting has the least of, on points that moved no weights.")
    ] = Criterion.bce,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from 10,000.")] = 3,
    out: Out = Path("out/bo4sc-grid"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """The grid search of Sanguin et al. 2024: every combination of the values given.

    Each option takes several values, `--steps 5 10 20`; one that is not given keeps the experiment's own grid, which is
    for a GPU. The choice is written as settings.json, for `calibrant reproduce bo4sc --settings`; with --from too.
    """
    given = {"steps": steps, "weight_lr": weight_lr, "alpha": alpha, "width": width, "epochs": epochs, "lr": lr}
    grid = {name: values for name, values in given.items() if values}
    call(
        "bo4sc.grid.run",
        grid=grid,
        seeds=seeds,
        out=out,
        device=device.value,
        sets=sets,
        criterion=criterion.value,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@sweep.command("meta-reg", cls=Experiment)
def sweep_meta_reg(
    bandwidth: Annotated[list[float] | None, typer.Option(help="h, the bandwidth of SECE in flg-sece.")] = None,
    tau: Annotated[list[float] | None, typer.Option(help="τ of the published γ-Net.")] = None,
    meta_rate: Annotated[list[float] | None, typer.Option(help="Multiples of flg-sece's meta rate.")] = None,
    dataset: Images = ImageData.cifar10,
    data: Folder = None,
    model: Network = None,
    recipe: Training = Recipe.short,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; 2, or 1 with --quick.")] = None,
    epochs: Epochs = None,
    limit: Limit = None,
    device: On = Device.auto,
    quick: Annotated[
        bool, typer.Option("--quick", help="On some of scikit-learn's digits: about a minute on two cores.")
    ] = False,
    out: Out = Path("out/meta-reg-sweep"),
    minutes: Minutes = None,
    fresh: Fresh = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Settings of the second paper's method, one at a time: h, τ and the meta rate, judged on validation data.

    Each of the three options takes several values, `--tau 0.001 0.1`; one that is not given keeps the study's own.
    """
    call(
        "meta_reg.sweep",
        bandwidths=bandwidth or None,
        temperatures=tau or None,
        rates=meta_rate or None,
        dataset=dataset.value,
        data=data,
        model=model,
        recipe=recipe.value,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
        device=device.value,
        quick=quick,
        out=out,
        minutes=minutes,
        fresh=fresh,
        export=export,
        source=source or None,
    )


@ablate.command("bo4sc", cls=Experiment)
def ablate_bo4sc(
    seeds: Seeds = 20,
    out: Out = Path("out/bo4sc-ablation"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """BO4SC's variants (hypergradients, outer losses, weights, other outer variables) and self-calibrated's parts."""
    call("bo4sc.ablation.run", seeds=seeds, out=out, device=device.value, jobs=jobs, fresh=fresh, source=source)


@ablate.command("tables", cls=Experiment)
def ablate_tables(
    data: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of tables (CSV, TSV, Parquet); needed without --from."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many splits, counted from 100.")] = 2,
    rows: Annotated[int, typer.Option(min=1, help="The most rows of a table that are trained on.")] = 3000,
    only: Annotated[list[str] | None, typer.Option(help="Names of tables; the development tables by default.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="Names of variants; all where not given.")] = None,
    out: Out = Path("out/tables-ablation"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Networks of self-calibrated with and without embedded columns, on development data: NLL and time."""
    if data is None and source is None:
        raise typer.BadParameter("give a folder of tables, or a result file by --from.", param_hint="--data")
    call(
        "tables.ablation.run",
        data=data,
        seeds=seeds,
        rows=rows,
        only=only or None,
        methods=methods or None,
        out=out,
        device=device.value,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@ablate.command("meta-reg", cls=Experiment)
def ablate_meta_reg(
    dataset: Images = ImageData.cifar10,
    data: Folder = None,
    model: Network = None,
    recipe: Training = Recipe.short,
    seeds: Seeds = 3,
    epochs: Epochs = None,
    limit: Limit = None,
    device: On = Device.auto,
    out: Out = Path("out/meta-reg-ablation"),
    minutes: Minutes = None,
    fresh: Fresh = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Variants of the second paper's methods: φ, outer loss, hypergradient, meta rate, moving average, positive γ."""
    call(
        "meta_reg.ablate",
        dataset=dataset.value,
        data=data,
        model=model,
        recipe=recipe.value,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
        device=device.value,
        out=out,
        minutes=minutes,
        fresh=fresh,
        export=export,
        source=source or None,
    )


@bench.command("tables", cls=Experiment)
def bench_tables(
    data: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of tables (CSV, TSV, Parquet); needed without --from."),
    ] = None,
    seeds: Seeds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Names of tables; all where not given.")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Ids of methods: those of `calibrant methods`, self-calibrated-network, self-calibrated-former, and "
            "the rivals: sklearn-mlp, hgb, lightgbm and catboost alone; sklearn-, hgb-, lightgbm- and catboost- with "
            "isotonic, sigmoid or temperature; realmlp-temperature. All where not given; rivals that are not installed "
            "are left out."
        ),
    ] = None,
    out: Out = Path("out/tables"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Every method on every table of a folder, 60/20/20 splits: scores, ranks, paired differences.

    What --out holds is not measured again, unless the table, the method's settings or its code changed.
    """
    if data is None and source is None:
        raise typer.BadParameter("give a folder of tables, or a result file by --from.", param_hint="--data")
    call(
        "tables.run",
        data=data,
        seeds=seeds,
        only=only or None,
        methods=methods or None,
        out=out,
        device=device.value,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@bench.command("noise", cls=Experiment)
def bench_noise(
    rates: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=1.0, help="Shares of flipped training labels; 0.2 0.4 by default."),
    ] = None,
    seeds: Seeds = 20,
    out: Out = Path("out/noise"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Flipped training labels and a clean validation part, on the five synthetic sets; four of them are judged."""
    call(
        "label_noise.run",
        rates=rates or [0.2, 0.4],
        seeds=seeds,
        out=out,
        device=device.value,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@bench.command("hostile", cls=Experiment)
def bench_hostile(
    seeds: Seeds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Names of cases; all where not given.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="Ids of contenders; all where not given.")] = None,
    before: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="The src folder of an earlier version, to measure it as `before`."
        ),
    ] = None,
    out: Out = Path("out/hostile"),
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Copies, groups, noise, outliers, too few rows, too many columns or classes: the default classifier on each.

    Beside it are the class frequencies, each member of its pool alone, and scikit-learn's classifiers.
    """
    call(
        "hostile.run",
        seeds=seeds,
        only=only or None,
        methods=methods or None,
        before=before,
        out=out,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@bench.command("guarantees", cls=Experiment)
def bench_guarantees(
    seeds: Annotated[int, typer.Option(min=1, help="How many data sets for each quick learner and set.")] = 200,
    network_seeds: Annotated[
        int, typer.Option(min=1, help="How many data sets for the self-calibrated classifier on each set.")
    ] = 15,
    learners: Annotated[
        list[str] | None,
        typer.Option(help="Of logistic, neighbours, tree and self-calibrated; all where not given."),
    ] = None,
    out: Out = Path("out/guarantees"),
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """How often rejection rules and prediction sets keep their promise, on synthetic sets whose posterior is known."""
    call(
        "guarantees.run",
        seeds=seeds,
        network_seeds=network_seeds,
        learners=learners or None,
        out=out,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@app.command("methods")
def list_methods() -> None:
    """List the methods: id and one line each."""
    from calibrant.methods import METHODS

    width = max(map(len, METHODS))
    for name, method in METHODS.items():
        typer.echo(f"{name:{width}}  {method.summary}")
