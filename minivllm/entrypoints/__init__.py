"""How a user reaches the engine: the Python face."""
