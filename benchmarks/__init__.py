"""Benchmarks: time and memory relative to the engine and to other packages; `make bench` writes RESULTS.md."""
