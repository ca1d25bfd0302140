"""Who runs in the next step, and for how many tokens."""
