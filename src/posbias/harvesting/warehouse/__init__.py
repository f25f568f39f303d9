"""The harvest as a printed query that a warehouse runs, and its exported answer read back."""
