"""Text to token ids, token ids to text."""
