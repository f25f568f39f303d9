"""The log: where it lies, what its columns mean, which layout they make."""
