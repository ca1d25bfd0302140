"""Weights of few bits."""
