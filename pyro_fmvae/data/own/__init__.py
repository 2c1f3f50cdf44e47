"""A person's own files and folders."""
