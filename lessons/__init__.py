"""Lessons: notebooks that import the engine, and the drawings they share with labs and site."""
