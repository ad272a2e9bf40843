"""Own networks of every kind: `calibrant.fit` beside plain training with a temperature."""

from calibrant.experiments.networks.study import run

__all__ = ["run"]
