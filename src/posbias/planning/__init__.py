"""Planning: how much more data a confidence interval needs, and what other traffic or another ranker would bring."""
