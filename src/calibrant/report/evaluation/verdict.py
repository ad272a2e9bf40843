"""The verdict: what the numbers say, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from calibrant.report.evaluation.numbers import ModelNumbers, off

SURE = 0.05
"""Below this p-value the calibration error is more than noise."""
_FEW = 200


@dataclass(frozen=True)
class CalibrationVerdict:
    """A kind, one sentence, and further notes.

    `kind` is "over-confident", "under-confident", "miscalibrated" (too high in one place and too low in another),
    "calibrated" (no error beyond noise) or "undecided" (too few rows to tell).
    """

    kind: str
    sentence: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.sentence, *self.notes])


def judge(m: ModelNumbers) -> CalibrationVerdict:
    """Judge one model by the test of its ECE and the interval of confidence minus accuracy."""
    error, gap = m.measures["ece"], m.gap
    floor = f"the noise floor for this sample is {_points(error.floor or 0.0)}"
    means = f"mean confidence {m.mean_confidence:.1%}, accuracy {m.measures['accuracy'].value:.1%}"
    bad = m.test.p_value < SURE
    if bad and (gap.low > 0 or gap.high < 0):
        kind = "over-confident" if gap.value > 0 else "under-confident"
        sentence = (
            f"{kind.capitalize()} by {_points(abs(gap.value))} points ({means}). "
            f"ECE is {_points(error.value)} points; {floor}."
        )
    elif bad:
        kind = "miscalibrated"
        sentence = (
            f"Miscalibrated: ECE is {_points(error.value)} points; {floor}. On average confidence and accuracy agree "
            f"({means}), so confidence is too high in some places and too low in others."
        )
    elif m.n < _FEW:
        kind = "undecided"
        sentence = (
            f"Too few rows to tell: ECE is {_points(error.value)} points, and a perfectly calibrated model scores "
            f"{_points(error.floor or 0.0)} on average on {m.n} rows."
        )
    else:
        kind = "calibrated"
        everywhere = " over all rows" if off(m.classes) or off(m.groups) else ""
        sentence = (
            f"No sign of miscalibration{everywhere}: ECE is {_points(error.value)} points; {floor}, the score of a "
            f"perfectly calibrated model ({means})."
        )
    return CalibrationVerdict(kind, _without_gain(m) + sentence, tuple(_notes(m, kind)))


def _without_gain(m: ModelNumbers) -> str:
    """A sentence if the interval of the accuracy reaches down to the share of the largest class."""
    hits = m.measures["accuracy"]
    largest = max(m.classes, key=lambda part: part["frequency"], default=None)
    if largest is None or hits.low is None or hits.low > largest["frequency"]:
        return ""
    return (
        f"Accuracy is not clearly above that of always predicting {largest['name']}, which is right in "
        f"{largest['frequency']:.1%} of the rows: {hits.value:.1%}, {m.level:.0%} interval {hits.low:.1%} to "
        f"{hits.high:.1%}. "
    )


def _notes(m: ModelNumbers, kind: str) -> list[str]:
    notes = []
    error = m.measures["ece"]
    if kind in ("calibrated", "undecided") and error.high is not None:
        notes.append(f"With {m.n:,} rows, a true error of up to {_points(error.high)} points could go unseen.")
    start = "But for" if kind in ("calibrated", "undecided") else "For"
    for noun, quantity, parts in (("classes", "its probability", m.classes), ("groups", "confidence", m.groups)):
        if sure := off(parts):
            two = noun == "classes" and len(parts) == 2  # they have the same gap with opposite signs
            worst = parts[1] if two else sure[0]
            place = f"class {worst['name']}" if two else f"{len(sure)} of {len(parts)} {noun}"
            worst_name = "" if two else f"the worst is {worst['name']}, "
            notes.append(
                f"{start} {place} {quantity} is off by more than chance: {worst_name}"
                f"{_points(abs(worst['gap']))} points {'too high' if worst['gap'] > 0 else 'too low'}."
            )
    if kind in ("over-confident", "under-confident", "miscalibrated"):
        gain = m.split["miscalibration"]
        notes.append(f"Recalibration could lower the Brier score of {m.split['brier']:.4f} by up to {gain:.4f}.")
    if m.weighted:
        notes.append("Rows are weighted; risk against coverage and the rejection window count each row once.")
    if m.measures["nll"].value == float("inf"):
        notes.append("An observed outcome had probability 0, so the NLL is infinite; give logits, or recalibrate.")
    return notes


def _points(value: float) -> str:
    """A fraction in percentage points."""
    return f"{100 * value:.1f}"
