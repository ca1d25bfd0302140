"""The decoder, and its weights from a checkpoint."""
