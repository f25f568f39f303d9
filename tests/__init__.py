"""The tests: a folder for each room of the package, and `support` for oracles and helpers."""
