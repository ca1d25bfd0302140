"""Measurements of the engine and its peers."""
