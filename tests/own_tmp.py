"""A directory for temporary files of each test's own.

Open MPI's launcher names its directory there by its process number, and one that was killed
leaves it behind. A launcher with the same number later, in another test, does not start
("The PMIx server's listener thread failed to start").
"""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``TMPDIR`` for what this test starts. Short, for names of sockets are."""
    with tempfile.TemporaryDirectory(prefix="ol-", ignore_cleanup_errors=True) as own:
        monkeypatch.setenv("TMPDIR", own)
        yield
