"""Mutations of files: of their bytes, and of the values in a nested state."""

import copy
import math

import torch
from hypothesis import strategies as st

TOKENS = [
    *(
        b"",
        b"\0",
        b"\xff",
        b'"',
        b"\\",
        b",",
        b"\n",
        b"[",
        b"]",
        b"{",
        b"}",
        b": ",
        b"- ",
        b"&a [*a]",
        b"-1",
        b"0",
    ),
    *(b"null", b"true", b"NaN", b"1e999", b"1e39", b"9" * 400, b"[" * 3000, b"- " * 3000, b'{"a":' * 3000),
    *(b"\x1b[2J", b"!!python/object/apply:os.system [false]", b"../../..", b"/dev/zero", b"\xff\xff\xff\x7f"),
]
ODD = [
    *(
        None,
        True,
        -1,
        0,
        1,
        2**31,
        10**400,
        0.5,
        -0.5,
        1e39,
        math.inf,
        math.nan,
        "",
        "x",
        "\x1b[2J",
        "1",
        [],
        {},
    ),
    *([[]], [None], ["x"], [-1], [0], [2**40], {"x": 1}, {"tensor": "x"}, {"items": 3}),
]
EDITS = ("insert", "replace", "cut", "repeat", "end")

bytewise = st.lists(
    st.tuples(st.sampled_from(EDITS), st.floats(0, 1), st.integers(1, 40), st.sampled_from(TOKENS)),
    min_size=1,
    max_size=3,
)
"""Edits for :func:`mutated`: kind, place as a share of the length, number of bytes, new bytes."""
nested = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
"""Place and new value for :func:`replaced`."""


def mutated(content, edits):
    """Bytes with some edits."""
    for kind, share, length, token in edits:
        place = int(share * len(content))
        if kind == "end":
            content = content[:place]
        elif kind == "repeat":
            content = content[:place] + content[place : place + length] * 20 + content[place + length :]
        else:
            behind = place if kind == "insert" else place + length
            content = content[:place] + (b"" if kind == "cut" else token) + content[behind:]
    return content


def replaced(state, choice):
    """A copy of a nested state in which one entry has another value, or is gone."""
    place, odd = choice
    state = copy.deepcopy(state)
    places = [(parent, key) for parent in _containers(state) for key in _keys(parent)]
    parent, key = places[place % len(places)]
    values = [*ODD, *_others(parent[key])]
    if odd % (len(values) + 1) == len(values):
        del parent[key]
    else:
        parent[key] = values[odd % (len(values) + 1)]
    return state


def _others(value):
    """Tensors like this one, of another type or shape; none if it is no tensor."""
    if not isinstance(value, torch.Tensor):
        return []
    types = [value.to(dtype) for dtype in (torch.float16, torch.complex64, torch.int64)]
    return [*types, value[None], value.reshape(-1)[:1], value * math.nan]


def _containers(value):
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item)


def _keys(container):
    return list(container) if isinstance(container, dict) else range(len(container))
