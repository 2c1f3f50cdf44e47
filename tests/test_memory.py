"""Faults of pages are counted in processes of their own: what is set there stays set."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

from pyro_fmvae import memory

GNU = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
NAMES = memory.VARIABLES
PROGRAM = """
import json, resource, sys
import numpy as np
from pyro_fmvae.memory import keep_freed_memory

done = keep_freed_memory() if sys.argv[1] == "keep" else None

def step():
    held = [np.ones(1_000_000) for _ in range(6)]  # 48 MB

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print(json.dumps([done, faults() - before]))
"""


def outcome(how, **variables):
    """What ``keep_freed_memory`` returned, and the page faults of ten steps behind it."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | variables
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(not GNU, reason="needs glibc")
def test_no_new_pages_are_asked_for():
    default, kept = outcome("default"), outcome("keep")
    assert kept[0] is True
    assert kept[1] < default[1] / 10


@pytest.mark.skipif(not GNU, reason="needs glibc")
def test_settings_of_the_environment_stay():
    done, faults = outcome("keep", MALLOC_TRIM_THRESHOLD_="131072")
    assert done is False
    assert faults > 10 * outcome("keep")[1]


@pytest.mark.parametrize("problem", [TypeError, OSError])
def test_other_systems_are_left_alone(monkeypatch, problem):
    def library(_):
        raise problem

    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory.ctypes, "CDLL", library)
    assert memory.keep_freed_memory() is False
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert memory.keep_freed_memory() is False
