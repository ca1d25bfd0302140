"""The door between deciding and computing."""
