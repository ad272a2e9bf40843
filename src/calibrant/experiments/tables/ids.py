"""Ids of the study's own rows, and which kind of classifier each row is."""

from __future__ import annotations

from calibrant.experiments.tables.bases import CROSS, base_of
from calibrant.experiments.tables.peers import PEERS
from calibrant.methods import METHODS

OWN = "self-calibrated"
NETWORK_ONLY = "self-calibrated-network"
"""The same with networks as the only members."""
FORMER = "self-calibrated-former"
"""The same with perceptrons as the only members: what it was before there were embeddings and a pool."""
RIVAL = "hgb-temperature"
"""The rival whose fit time is the measure, together with that of our former classifier."""
CROSSED = f"hgb-{CROSS}"
"""The trees of RIVAL in our CrossCalibrated, on the same folds."""
OURS = frozenset({OWN, NETWORK_ONLY, FORMER, CROSSED})
"""What this library recommends or recommended: no rivals of each other."""
STORIES = {
    OWN: "networks, boosted trees and a linear model in one cross-fitted pool",
    NETWORK_ONLY: "the networks of self-calibrated without other members",
    FORMER: "perceptrons without embeddings and without other members, as before there was a pool",
}
"""What those rows are that are neither in the registry of methods nor rivals."""


def kind(method: str) -> str:
    """The group of a row."""
    if method in OURS:
        return "ours"
    if method in PEERS:
        return base_of(method)[0].kind
    return "network, baseline" if method in METHODS else "other"
