"""The curve as a value: a table, JSON or CSV, a picture."""
