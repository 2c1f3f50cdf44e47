"""Data sets that are published or generated."""
