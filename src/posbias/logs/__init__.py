"""The log as the user describes it: its source, its columns and its layout."""
