"""The harvest as SQL: named steps that read top-down, with a small class of hooks for each dialect."""
