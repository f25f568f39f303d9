"""From a ClickLog to a Harvest: everything that estimation needs to know of a log, in a small table."""
