"""Measurements. Each module prints ratios from one run and leaves a file under `benchmarks/results/`."""
