"""Sections that modules of the studies write: docs/meta-regularisation-results.md and docs/hostile.md."""

from __future__ import annotations

from docs.generate.stored import RESULTS
from studies.hostile import docs as hostile
from studies.hostile.study import STUDY as HOSTILE
from studies.meta_reg import docs as meta_reg
from studies.meta_reg.study import STUDY as META_REG


def meta_regularisation() -> str:
    """What ``python -m studies.meta_reg.docs`` writes."""
    return meta_reg.results_section(META_REG.read(meta_reg.result_files(RESULTS)))


def difficult_data() -> str:
    """What ``python -m studies.hostile.docs`` writes."""
    return hostile.results_section(HOSTILE.read([RESULTS / "hostile.json"]))


SECTIONS = {
    f"written by {meta_reg.__name__}": meta_regularisation,
    f"written by {hostile.__name__}": difficult_data,
}
