"""The work of a function in Python, independent of the load of the machine."""

import sys


def count_calls(function):
    """Count the calls of Python and C functions while a function runs."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
