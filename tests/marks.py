"""Marks of tests."""

import pytest


def slow_together(group):
    """Marks slow tests that go to one worker under ``--dist loadgroup``, where they share their fixtures."""

    def mark(test):
        return pytest.mark.slow(pytest.mark.xdist_group(group)(test))

    return mark
