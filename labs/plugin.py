"""The labs' tests under plain pytest: `pytest labs` judges the reference, in this process.

The same tests run without pytest when a learner is judged (`runner`), so nothing that lies in a
learner's folder, no conftest.py and no pytest.ini, has a say there.
"""

from __future__ import annotations

import pytest

from .judge import Lab, connect_here
from .runner import TEST_NAME


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Lab:
    made = Lab(name=request.node.name)
    connect_here(made, "minivllm")
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By lab, then by the tests' numbers."""

    def place(item: pytest.Item) -> tuple:
        match = TEST_NAME.fullmatch(item.name)
        return str(item.path), int(match[1]) if match else 0

    items.sort(key=place)
