"""What happened: counters, and the trace of every step."""
