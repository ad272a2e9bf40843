"""Own networks of every kind: `calibrant.fit` beside plain training with a temperature."""
