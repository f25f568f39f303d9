"""Ratios against the engine's own limit and against peers: `make bench` writes them to RESULTS.md."""
