"""`studies sweep meta-reg`: change one setting of the paper's method at a time, judged on validation data.

For ``flg-sece``, the setting is h (the bandwidth of SECE), the strength of SECE beside cross-entropy in the outer loss,
or the outer learning rate; for ``flg-sece-published``, it is τ. Settings are compared on the validation part, which
neither trains the network nor moves outer variables. Test images are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from calibrant.methods import Method
from studies.common.options import Device, Option
from studies.common.study import Plan
from studies.meta_reg.plan import runs
from studies.meta_reg.study import NAME, TRIAL_SEEDS, Minutes, chosen_setup, training_plan
from studies.meta_reg.study import STUDY as REPRODUCTION
from studies.meta_reg.variants import meta

BANDWIDTHS, STRENGTHS, RATES = (0.005, 0.01, 0.02, 0.05), (10.0, 40.0), (0.1, 1.0, 10.0)
"""For ``flg-sece``: h and the strength of SECE in the outer loss, and multiples of the outer learning rate.

The paper has h = 0.01.
"""
TEMPERATURES = (0.001, 0.01, 0.1)
"""For ``flg-sece-published``: τ of γ-Net."""
SEEDS = 2


def settings(
    bandwidths: Sequence[float] = BANDWIDTHS,
    temperatures: Sequence[float] = TEMPERATURES,
    rates: Sequence[float] = RATES,
    strengths: Sequence[float] = STRENGTHS,
) -> dict[str, Method]:
    """The methods of a search by name: the two defaults, and one method for each other value."""
    options = {
        "--bandwidth": bandwidths,
        "--tau": temperatures,
        "--outer-learning-rate": rates,
        "--strength": strengths,
    }
    for option, values in options.items():
        if wrong := [value for value in values if not value > 0]:
            raise ValueError(f"{option} must be positive; got {wrong[0]:g}.")
    base, published = meta("flg-sece"), meta("flg-sece-published")
    defaults = dict(base.outer_settings)
    methods: dict[str, Method] = {"flg-sece": base, "flg-sece-published": published}
    for axis, name, values in (("h", "bandwidth", bandwidths), ("strength", "strength", strengths)):
        for value in values:
            if value != defaults[name]:
                outer = tuple((defaults | {name: value}).items())
                methods[f"flg-sece-{axis}-{value:g}"] = replace(base, outer_settings=outer)
    for tau in temperatures:
        if tau != published.temperature:
            methods[f"flg-sece-published-tau-{tau:g}"] = replace(published, temperature=tau)
    for factor in rates:
        if factor != 1:
            methods[f"flg-sece-rate-{factor:g}"] = replace(base, outer_learning_rate=base.outer_learning_rate * factor)
    return methods


def plan(
    *,
    bandwidths: Annotated[
        Sequence[float], Option("h, the bandwidth of SECE in flg-sece.", names=("--bandwidth",))
    ] = BANDWIDTHS,
    temperatures: Annotated[Sequence[float], Option("τ of the published γ-Net.", names=("--tau",))] = TEMPERATURES,
    rates: Annotated[
        Sequence[float],
        Option("Multiples of flg-sece's outer learning rate.", names=("--outer-learning-rate", "--meta-rate")),
    ] = RATES,
    strengths: Annotated[
        Sequence[float],
        Option("Strength of SECE beside cross-entropy in flg-sece's outer loss.", names=("--strength",)),
    ] = STRENGTHS,
    seeds: Annotated[int | None, Option("Number of seeds; default: 2, or 1 with --quick.", least=1)] = None,
    quick: bool = False,
    device: Device = "auto",
    minutes: Minutes = None,
    **options: Any,
) -> Plan:
    """Search settings of the second paper's method, on validation data: h, τ, outer learning rate, strength.

    Each of these four options takes several values, such as `--tau 0.001 0.1`. Options that are not given keep their
    default values.
    """
    methods = settings(bandwidths, temperatures, rates, strengths)
    setup = chosen_setup(quick=quick, trial=True, **options)
    planned = runs(setup, list(methods), seeds or (TRIAL_SEEDS if quick else SEEDS), methods)
    return training_plan(setup, planned, device, minutes)


STUDY = replace(REPRODUCTION, plan=plan, screen=None, folder=f"{NAME}-sweep")
