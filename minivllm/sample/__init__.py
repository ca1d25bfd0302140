"""From a row of scores to a token."""
