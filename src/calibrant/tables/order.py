"""The options of `calibrant train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calibrant.data.columns import Notation


@dataclass(frozen=True)
class Order:
    """The options of `calibrant train`. Files can be given as strings.

    Parameters
    ----------
    table : path
        CSV, TSV or Parquet file.
    target : str
        Column with the classes to predict.
    out : path
        Folder for the model, the scores and the report.
    method : {"self-calibrated", "self-calibrated-network", "bo4sc"}
        What is trained.
    val : path, optional
        A file of validation rows, whose labels are more reliable than the others.
    test : float or path
        Test rows: a share of the table, or a file.
    groups : str, optional
        Column of groups, such as patients; a group is never split between parts.
    test_overlap : bool
        Accept test rows of groups that are also in training, as a file or ``time`` can have them.
    time : str, optional
        Column of dates or numbers; the newest rows are the test part. It is not an input. Folds inside the training
        part are drawn at random.
    weight : str, optional
        Column of weights, such as the number of people that a row represents. They count in training, calibration and
        scores; the rejection rule counts rows. It is not an input.
    drop, categorical, text : sequence of str
        Columns to leave out, columns whose numbers are codes, and columns of free text.
    risk : float
        Largest share of errors among the predictions that are not withheld.
    seed : int
        Seed of the split and of training.
    device : {"auto", "cpu", "cuda"}
        ``"auto"`` uses a GPU if there is one.
    rows : bool
        Show values of the table in the report and in suspects.csv.
    decimal, thousands : str
        The decimal mark of numbers in text, and the mark between thousands.
    dates : str or sequence of str
        Formats of dates, such as ``"%d.%m.%Y"``. Dates in the ISO format need none.
    encoding : str
        The encoding of text files.
    settings : dict
        Further parameters of the classifier.
    """

    table: Path
    target: str
    out: Path
    method: str = "self-calibrated"
    val: Path | None = None
    test: float | Path = 0.2
    groups: str | None = None
    test_overlap: bool = False
    time: str | None = None
    weight: str | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    risk: float = 0.05
    seed: int = 0
    device: str = "auto"
    rows: bool = True
    decimal: str = "."
    thousands: str = ""
    dates: tuple[str, ...] = ()
    encoding: str = "utf-8"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("table", "out", "val"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        object.__setattr__(self, "test", _share_or_file(self.test))

    @property
    def notation(self) -> Notation:
        """How numbers and dates are written, and the encoding."""
        return Notation(self.decimal, self.thousands, self.dates, self.encoding)

    @property
    def config(self) -> dict[str, Any]:
        """The options as plain values; files by their names."""
        options = {name: value for name, value in asdict(self).items() if name not in ("out", "rows")}
        return {name: value.name if isinstance(value, Path) else value for name, value in options.items()}


def _share_or_file(test: Any) -> float | Path:
    """The test rows: a share of the rows, as a number or as text, or a file."""
    try:
        share = float(test)
    except (TypeError, ValueError):
        return Path(test)
    if not 0 < share < 1:
        raise ValueError(f"--test must be a file or a share of the rows between 0 and 1, such as 0.2; got {test}.")
    return share
