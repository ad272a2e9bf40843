"""The ids of the study's own rows, and the kind of classifier of each row."""

from __future__ import annotations

from studies.tables.bases import CROSS, base_of
from studies.tables.peers import PEERS

OWN = "self-calibrated"
NETWORK_ONLY = "self-calibrated-network"
"""The same with only networks as members."""
FORMER = "self-calibrated-former"
"""The same with only perceptrons as members: the version before embeddings and the pool."""
RIVAL = "hgb-temperature"
"""The rival whose fit time, together with that of our former classifier, sets the time target."""
CROSSED = f"hgb-{CROSS}"
"""The trees of RIVAL in our CrossCalibrated, on the same folds."""
OURS = frozenset({OWN, NETWORK_ONLY, FORMER, CROSSED})
"""Classifiers that this library recommends or recommended; they are not rivals of each other."""
STORIES = {
    OWN: "networks, boosted trees and a linear model in one cross-fitted pool",
    NETWORK_ONLY: "the networks of self-calibrated without other members",
    "instance-weights": "weights that a network computes from the input, for accurate and stable predictions (Jain & "
    "Shenoy 2022)",
    FORMER: "perceptrons without embeddings and without other members, as before there was a pool",
}
"""Descriptions of rows that are neither registered methods nor rivals."""


def kind(method: str) -> str:
    """Return the group of a row."""
    if method in OURS:
        return "ours"
    if method in PEERS:
        return base_of(method)[0].kind
    return "network, baseline"
