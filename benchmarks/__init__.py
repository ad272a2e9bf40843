"""What the project claims to be fast at, measured. `make bench` writes `results/bench.json`."""
