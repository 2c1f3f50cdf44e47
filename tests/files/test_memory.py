"""Faults of pages are counted in processes of their own: what is set there stays set."""

import ctypes
import json
import subprocess
import sys

import numpy as np
import pytest

from pyro_fmvae import __main__
from pyro_fmvae.files import memory

GNU = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
SETTINGS = {
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_ARENA_MAX": "2",
    "GLIBC_TUNABLES": "glibc.rtld.nns=4:glibc.malloc.trim_threshold=131072",
}
PROGRAM = """
import importlib.util, json, resource, sys, threading
import numpy as np

spec = importlib.util.spec_from_file_location("memory", sys.argv[1])  # without the package, so without torch
memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
done = memory.keep_freed_memory() if sys.argv[2] == "keep" else None
number, size, found = int(sys.argv[3]), int(sys.argv[4]), []


def step():
    held = [np.ones(size) for _ in range(number)]


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def run():
    for _ in range(3):
        step()
    before = faults()
    for _ in range(10):
        step()
    found.append(faults() - before)


if sys.argv[5] == "main":
    run()
else:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
print(json.dumps([done, *found]))
"""
# arrays, doubles in each, thread
CASES = [(6, 1_000_000, "main"), (4, 2_500_000, "other"), (12, 2_500_000, "other")]


@pytest.fixture
def plain(monkeypatch):
    """An environment without settings."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


def outcome(how, number, size, thread):
    """The result of ``keep_freed_memory``, and the page faults of ten steps after it."""
    command = [sys.executable, "-c", PROGRAM, memory.__file__, how, str(number), str(size), thread]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.usefixtures("plain")
@pytest.mark.skipif(not GNU, reason="needs glibc")
@pytest.mark.parametrize("case", CASES)
def test_no_new_pages_are_asked_for(case):
    default, kept = outcome("default", *case), outcome("keep", *case)
    assert kept[0] is True
    assert kept[1] < default[1] / 10


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_environment_stay(monkeypatch, name):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("set something"))
    monkeypatch.setenv(name, SETTINGS[name])
    assert memory.settings_of_environment() == [name]
    assert memory.keep_freed_memory() is False


@pytest.mark.usefixtures("plain")
def test_other_tunables_are_no_settings_of_memory(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
    assert memory.settings_of_environment() == []


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("problem", [TypeError, OSError])
def test_other_systems_are_left_alone(monkeypatch, problem):
    def library(_):
        raise problem

    monkeypatch.setattr(memory.ctypes, "CDLL", library)
    assert memory.keep_freed_memory() is False
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert memory.keep_freed_memory() is False


def test_the_program_keeps_memory_before_anything_else(monkeypatch):
    done = []
    monkeypatch.setattr(__main__, "keep_freed_memory", lambda: done.append("keep"))
    monkeypatch.setattr(__main__, "run_command", lambda arguments: done.append(arguments) or 0)
    with pytest.raises(SystemExit):
        __main__.main(["train"])
    assert done == ["keep", ["train"]]


@pytest.mark.skipif(sys.platform == "win32", reason="has no resource module")
def test_most_used_never_falls():
    before = memory.most_used()
    array = bytearray(b"x") * 2**27
    assert max(before, len(array)) <= memory.most_used() < 2**40


FAR_TOO_MUCH = 4 << 27  # numbers, 4 GiB: more than earlier tests can have left to be freed meanwhile


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to a limit")
def test_what_a_file_makes_a_library_allocate_is_limited():
    before = memory.resource.getrlimit(memory.resource.RLIMIT_DATA)
    with memory.at_most(100 << 20):
        with memory.confined("outer"):
            with memory.confined("inner"):
                np.ones(50 << 17)
            message = r"^a\.h5: reading it takes more than 100\.0 MiB of memory .*; --max-memory"
            with pytest.raises(ValueError, match=message), memory.confined("a.h5"):
                np.empty(FAR_TOO_MUCH)
            with pytest.raises(MemoryError):  # the outer one still holds
                np.empty(FAR_TOO_MUCH)
        np.ones(300 << 17)
    assert memory.resource.getrlimit(memory.resource.RLIMIT_DATA) == before
