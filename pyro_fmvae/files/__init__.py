"""Checkpoints, and limits on what files may do."""
