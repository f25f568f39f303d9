"""The embedded engine, which spills to disk under a memory limit."""
