"""Benchmarks of the project's claims about speed, memory and loss. `make bench` writes `results/bench.json`."""
