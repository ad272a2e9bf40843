"""The experiment on users' networks: `calibrant.fit` compared with plain training and a temperature."""

from studies.networks.study import run

__all__ = ["run"]
