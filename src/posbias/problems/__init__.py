"""What can be wrong with a log, each kind in a file: how often, an example and a remedy."""
