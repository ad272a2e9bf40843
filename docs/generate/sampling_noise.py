"""How much of a published calibration error is chance: the table, the sentences and the figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from calibrant.plots.style import GREY, PALETTE, context
from docs.generate.stored import bullets, save_png, stored, words
from studies.meta_reg.sampling_noise import SEEDS
from studies.report import to_markdown, with_digits

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
WIDE = 1.96
"""Standard deviations to each side of a 95 % interval."""
Record = Mapping[str, Any]


def table() -> str:
    """The published values, with the values of calibrated networks as the first row of each data set."""
    rows: list[list[object]] = []
    for record in _records():
        title, own = TITLES[record["dataset"]], record["calibrated"]["ece"]
        rows.append([title, "calibrated (simulated)", 100 * own["mean"], 100 * own["std"], 0.0, _range(own)])
        for row in record["published"]:
            above = "above" if row["printed"] > own["high"] else "inside"
            rows.append([title, row["method"], 100 * row["printed"], 100 * row["std"], 100 * row["true"], above])
    columns = with_digits(2, "ECE %", "± over samples", "without noise")
    return to_markdown(["data set", "network", *columns, "95 % of calibrated networks"], rows)


def differences() -> str:
    """The published differences, and the smallest ones that are more than chance."""
    rows = []
    for record in _records():
        for row in record["differences"]:
            other, same = (WIDE * row[f"std_{which}_images"] for which in ("other", "same"))
            values = (100 * value for value in (row["difference"], other, same, _of_seeds(record)))
            rows.append([TITLES[record["dataset"]], f"{row['a']} − {row['b']}", *values])
    limits = ("chance on other images", "on the same images, at least", "on the same images, our seeds")
    return to_markdown(["data set", "difference", *with_digits(2, "points", *limits)], rows)


def sentences() -> list[str]:
    """What a calibrated network scores, and which published differences exceed chance."""
    told = []
    for record in _records():
        own, five = (record["calibrated"][name] for name in ("ece", "ece_of_five"))
        ours = record["seeds"]["recommended"]
        told.append(
            f"{TITLES[record['dataset']]}: a calibrated network scores {100 * own['mean']:.2f} ± "
            f"{100 * own['std']:.2f} % ({_range(own)} in 95 % of samples). A mean over {SEEDS} seeds is no lower; "
            "in 95 % of samples it is "
            f"{_range(five)} if each seed has its own images, and up to {_range(own)} on the same images. Our "
            f"`recommended` has {100 * ours['mean']:.2f} % over {ours['seeds']} seeds."
        )
    return [*told, *_exceeding()]


def _exceeding() -> list[str]:
    """The published differences above each limit, over all data sets."""
    limits: dict[str, Callable[[Record, Record], float]] = {
        "on different images": lambda record, row: WIDE * row["std_other_images"],
        "on the same images, with the spread of our seeds": lambda record, row: _of_seeds(record),
        "on the same images, if the networks agree as far as their accuracies allow": lambda record, row: (
            WIDE * row["std_same_images"]
        ),
    }
    pairs = [(record, row) for record in _records() for row in record["differences"]]
    told = []
    for where, limit in limits.items():
        exceeding = [(record, row) for record, row in pairs if row["difference"] > limit(record, row)]
        names = [f"{row['a']} − {row['b']} on {TITLES[record['dataset']]}" for record, row in exceeding]
        which = "" if len(names) == len(pairs) else f": {words(names)}"
        told.append(f"Of {len(pairs)} published differences, {len(names)} exceed chance {where}{which}.")
    return told


def draw(folder: Path) -> Iterator[Path]:
    """The published values with their spread over samples, and the range of calibrated networks."""
    with context() as plt:
        figure, axes = plt.subplots(1, len(TITLES), figsize=(7, 2.4), layout="constrained")
        for ax, record in zip(axes, _records(), strict=True):
            own = record["calibrated"]["ece"]
            ax.axvspan(100 * own["low"], 100 * own["high"], color="0.88", label="calibrated, 95 % of samples")
            ax.axvline(100 * own["mean"], color=GREY, linewidth=1, label="calibrated, mean")
            rows = record["published"][::-1]
            eces, spreads = ([100 * row[name] for row in rows] for name in ("printed", "std"))
            wide = [WIDE * spread for spread in spreads]
            ax.errorbar(eces, range(len(rows)), xerr=wide, fmt="o", color=PALETTE[0], capsize=3, label="published")
            ax.set_yticks(range(len(rows)), [row["method"] for row in rows])
            ax.set(title=TITLES[record["dataset"]], xlabel="ECE %", xlim=(0, None))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        yield save_png(figure, folder / "second-paper-sampling-noise")


def _records() -> list[Record]:
    return stored("sampling-noise").records


def _range(values: Mapping[str, float]) -> str:
    return f"{100 * values['low']:.2f} to {100 * values['high']:.2f}"


def _of_seeds(record: Record) -> float:
    """The smallest difference of two runs with one seed each that exceeds the spread of stored seeds."""
    return WIDE * float(2**0.5) * max(own["std"] for own in record["seeds"].values())


SECTIONS = {
    "sampling-noise": table,
    "sampling-noise-differences": differences,
    "sampling-noise-sentences": lambda: bullets(sentences()),
}
