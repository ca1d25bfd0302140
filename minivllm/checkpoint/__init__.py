"""Checkpoints on disk: where they are, what is in them, their bytes. Never a tensor library."""
