"""Plain `pytest labs` judges the reference."""

from labs.plugin import lab, pytest_collection_modifyitems

__all__ = ["lab", "pytest_collection_modifyitems"]

collect_ignore = ["mine"]
