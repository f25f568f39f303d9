"""From a harvest to one page that a colleague can read in five minutes: the answer, whether to trust it, and why."""
