"""Planning: how much more data an interval needs, and what other traffic or another ranker would bring."""
