"""The rejection window, and the rejection rule: a window with what is known about it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch


class JsonRule:
    """A rule that is written as JSON. A subclass names its format, and converts its fields to plain values and back."""

    _FORMAT: ClassVar[str]
    _NOUN: ClassVar[str] = "set rule"

    def _to_fields(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the rule as strict JSON: infinite numbers are the strings "inf" and "-inf", NaN is null."""
        return json.dumps({"format": self._FORMAT, **self._to_fields()}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        try:
            fields = json.loads(text)
        except (TypeError, json.JSONDecodeError, RecursionError):
            raise ValueError(
                f"text must be JSON, as written by to_json; got {str(text)[:40]!r}. Pass the content of the file."
            ) from None
        form = fields.pop("format", None) if isinstance(fields, dict) else type(fields).__name__
        if form != cls._FORMAT:
            raise ValueError(f"text must be JSON with format {cls._FORMAT!r}, as written by to_json; got {form!r}.")
        try:
            return cls._of_fields(fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"The {cls._NOUN} is incomplete or has unknown fields: {error}. Write it again with to_json."
            ) from error


def plain_number(value: float) -> float | str:
    """A number for JSON; an infinite one as text."""
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Window:
    """An open interval (low, high) of confidence in which the prediction is withheld.

    Accepted: c ≤ low or c ≥ high (Sanguin et al. 2024, Section 1). With the default `low = -inf` this is the usual
    threshold: accept if c ≥ high. A two-sided window suits a score such as the probability of class 1 of two:
    `Window(0.3, 0.7)` withholds the undecided middle and treats both classes alike. `low == high` withholds nothing.
    NaN is never accepted.
    """

    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        if not self.low <= self.high:
            raise ValueError(
                f"low must be at most high; got low={self.low:g}, high={self.high:g}. "
                "Predictions between the two are withheld."
            )

    @classmethod
    def below(cls, threshold: float) -> Window:
        """Withhold every prediction whose confidence is less than `threshold`."""
        return cls(high=threshold)

    def accepts(self, confidence: Any) -> Any:
        """Whether each prediction is accepted: a bool array, or a tensor for a tensor.

        The comparison is in float64, so that a float32 confidence falls on the same side as when the window was chosen.
        """
        wide: Any
        if isinstance(confidence, torch.Tensor):
            tensor = confidence.detach()
            wide = (tensor.cpu() if tensor.device.type == "mps" else tensor).double()  # mps has no float64
        else:
            wide = np.asarray(confidence, dtype=np.float64)
        # An empty window accepts every number; the last term rejects NaN.
        accepted = ~((wide > self.low) & (wide < self.high)) & (wide == wide)
        return accepted.to(confidence.device) if isinstance(confidence, torch.Tensor) else accepted

    def __str__(self) -> str:
        if self.low == self.high:
            return "never withheld"
        if self.low == -math.inf and self.high == math.inf:
            return "always withheld"
        if self.low == -math.inf:
            return f"withheld below confidence {self.high:.6g}"
        if self.high == math.inf:
            return f"withheld above confidence {self.low:.6g}"
        return f"withheld between confidence {self.low:.6g} and {self.high:.6g}"


@dataclass(frozen=True)
class RejectionRule(JsonRule):
    """A window, and what is known about it.

    Attributes
    ----------
    window : Window or None
        Where predictions are withheld; None if no window meets the target, see `found`.
    goal, target : str, and float or None
        The goal, "risk", "coverage", "cost" or (chosen by hand) "none", and its value.
    method : str
        The procedure that chose the window.
    n, coverage, risk : int, float and float
        Size of the sample, and on that sample the accepted share and its error rate.
    level : float or None
        Probability with which `risk_bound` (for the goal "coverage": the target) holds; None without a guarantee.
    risk_bound : float or None
        Upper bound on the error rate of accepted predictions on new data from the same distribution. If no window was
        found, this is the smallest bound of all windows for the method "uniform", and None for the other methods.
    """

    window: Window | None
    goal: str
    target: float | None
    method: str
    n: int
    coverage: float
    risk: float
    level: float | None = None
    risk_bound: float | None = None

    _FORMAT: ClassVar[str] = "calibrant.rejection-rule/1"
    _NOUN: ClassVar[str] = "rejection rule"

    @property
    def found(self) -> bool:
        """Whether a window met the target."""
        return self.window is not None

    def accepts(self, confidence: Any) -> Any:
        """Whether each prediction is accepted; raises an error if no window was found."""
        if self.window is None:
            raise ValueError(f"{self.summary()} To withhold every prediction, use Window().accepts(...).")
        return self.window.accepts(confidence)

    def summary(self) -> str:
        """Describe the rule in one or two sentences."""
        purpose = f"for {self.goal} {self.target:.4g}" if self.target is not None else "by hand"
        if self.window is None:
            closest = f"; the smallest bound reached is {self.risk_bound:.4g}" if self.risk_bound else ""
            return (
                f"No window was found {purpose} at confidence level {self.level:g} on {self.n} samples "
                f"({self.method}){closest}. "
                "Allow a larger risk, use a lower level, or give more samples."
            )
        wrong = "" if math.isnan(self.risk) else f", {self.risk:.2%} of them wrong"
        text = (
            f"Predictions are {self.window} (chosen {purpose}, {self.method}). "
            f"On {self.n} samples {self.coverage:.1%} are accepted{wrong}."
        )
        if self.level is not None and self.risk_bound is not None:
            text += f" With confidence {self.level:g} the risk on new data is at most {self.risk_bound:.2%}."
        elif self.level is not None and self.goal == "coverage":
            text += f" With confidence {self.level:g} at least {self.target:.1%} of new data is accepted."
        return text

    __str__ = summary

    def _to_fields(self) -> dict[str, Any]:
        fields = asdict(self)
        if self.window is not None:
            fields["window"] = {side: plain_number(limit) for side, limit in fields["window"].items()}
        return fields | {"risk": None if math.isnan(self.risk) else self.risk}

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        if fields["window"] is not None:
            fields["window"] = Window(**{side: float(value) for side, value in fields["window"].items()})
        if fields["risk"] is None:
            fields["risk"] = math.nan
        return cls(**fields)


def on_sample(confidence: np.ndarray, correct: np.ndarray, window: Window | None) -> tuple[float, float]:
    """Share of the sample that a window accepts, and its error rate; NaN if nothing is accepted."""
    if window is None:
        return 0.0, np.nan
    accepted = window.accepts(confidence)
    return float(accepted.mean()), float((~correct[accepted]).mean()) if accepted.any() else np.nan
