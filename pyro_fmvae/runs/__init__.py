"""A run: its folder, its training session and its report."""
