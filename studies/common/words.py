"""Texts of the reports, which ``words.toml`` holds, and the seeds that were used in development."""

from __future__ import annotations

import tomllib
from importlib import resources

_TEXTS = tomllib.loads((resources.files("studies.common") / "words.toml").read_text(encoding="utf-8"))
UNEQUAL, UNEQUAL_PEERS, FLOORS, DEFAULTS, HIDDEN = (
    str(_TEXTS[name]) for name in ("unequal", "unequal_peers", "floors", "defaults", "hidden")
)
LEFT_OPEN: tuple[tuple[str, str], ...] = tuple(_TEXTS["left_open"].items())
"""What the first paper leaves open, and our choice."""
BASELINES: dict[str, str] = _TEXTS["baselines"]
"""The reason for the settings of each method."""
SEEN = frozenset({*range(20), *range(500, 508), *range(700, 740)})
"""Seeds of the synthetic sets that were used while the methods were developed; see ``DEFAULTS``."""
FURTHER = "results/bo4sc-more-seeds.json"
"""Results of all methods on other seeds."""
