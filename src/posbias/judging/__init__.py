"""Findings: what is wrong with a log, and how far to trust what comes of it."""
