"""The loop: plan, execute, sample, update; text in, text out."""
