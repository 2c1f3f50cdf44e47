"""Memory of the process: what it has and may have, and settings of the C library for freed tensors."""

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # as glibc's malloc.h numbers them
_NEVER = -1
_LARGEST = 32 << 20  # bytes: glibc takes no greater threshold
_SLACK = 64 << 20  # bytes that threads and buffers of a library take, whatever the file
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_STATM = Path("/proc/self/statm")
_given: list[int] = []  # limits of :func:`at_most`, the innermost last
_confinements: list[tuple[int, int]] = []  # limits before each :func:`confined` that is under way
_CONFINING = Lock()
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")


def keep_freed_memory() -> bool:
    """Keep freed memory for later allocations instead of returning it to the system.

    By default glibc returns free memory at the end of its heap. A training step on a CPU, with tensors of
    some megabytes, then gets new pages from the kernel each time, all of which have to be zeroed. The price
    of keeping memory is that the process holds on to the largest amount it has needed so far, and that all
    its threads share one heap. Arrays above 32 MiB are still returned.
    ``examples/benchmarks/freed_memory.py`` measures the gain.

    The setting holds for the whole process and cannot be undone. ``pyro-fmvae`` calls this function first.

    Returns:
        True if glibc accepted the settings (which a preloaded allocator ignores). False if the C library is
        not glibc, or the environment has settings of its own (:func:`settings_of_environment`).
    """
    if settings_of_environment():
        return False
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return False
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = (
        (_MMAP_THRESHOLD, _LARGEST),
        (_TRIM_THRESHOLD, _NEVER),
        (_ARENA_MAX, 1),  # glibc returns other threads' heaps as soon as they are empty
    )
    return all([library.mallopt(name, value) for name, value in settings])


def settings_of_environment() -> list[str]:
    """Names of environment variables that set how glibc treats freed memory."""
    names = [name for name in _VARIABLES if name in os.environ]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        names.append("GLIBC_TUNABLES")
    return names


def most_used() -> int | None:
    """Most memory that this process has held at once, in bytes; None where the system does not tell."""
    if resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, or KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def check_fits(size: int, source: str) -> None:
    """Check that contents of a file may be taken into memory, before they are.

    Args:
        size: bytes that they take, by the file's own header.
        source: name of the contents in messages.

    Raises:
        ValueError: they are more than :func:`limit`.
    """
    if size > limit():
        raise ValueError(
            f"{source}: loading it would take {describe(size)} of memory, above the limit of "
            f"{describe(limit())}; raise it with --max-memory"
        )


def limit() -> int:
    """Most bytes that the contents of a file may take: those of :func:`at_most`, or half of all memory.

    That memory is the machine's, or less where the process is confined to less (cgroup, ``ulimit -v``).
    """
    if _given:
        return _given[-1]
    found = [2**63]
    with suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):
        found.append(int(_CGROUP.read_text()))  # "max": no limit
    if resource is not None and (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        found.append(most)
    return min(found) // 2


@contextmanager
def confined(source: str) -> Iterator[None]:
    """Let the whole process allocate at most :func:`limit` bytes more than it has, while it reads a file.

    Headers do not say everything: a compressed piece may unpack to more than its header says, and many
    strings may be one and the same. Linux holds the process to the limit (``RLIMIT_DATA``); elsewhere only
    headers are checked.

    Args:
        source: the file, in messages.

    Raises:
        ValueError: reading takes more.
    """
    _confine()
    try:
        yield
    except MemoryError as error:
        reason = (str(error).splitlines() or ["nothing is left"])[0]
        raise ValueError(
            f"{source}: reading it takes more than {describe(limit())} of memory ({reason}); "
            "--max-memory sets another limit"
        ) from None
    finally:
        _release()


def _confine() -> None:
    if resource is None:
        return
    with _CONFINING:
        before = resource.getrlimit(resource.RLIMIT_DATA)
        _confinements.append(before)
        with suppress(OSError):  # without /proc
            now = int(_STATM.read_text().split()[5]) * resource.getpagesize()
            limits = [now + limit() + _SLACK, *(one for one in before if one != resource.RLIM_INFINITY)]
            resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))


def _release() -> None:
    """Put back what the first confinement found when the last one ends: several threads may read."""
    if resource is None:
        return
    with _CONFINING:
        first = _confinements[0]
        _confinements.pop()
        if not _confinements:
            resource.setrlimit(resource.RLIMIT_DATA, first)


@contextmanager
def at_most(size: int | None) -> Iterator[None]:
    """Set :func:`limit`, in bytes, for all threads; None leaves it as it is."""
    if size is None:
        yield
        return
    _given.append(size)
    try:
        yield
    finally:
        _given.pop()


def parse_size(text: str) -> int:
    """Bytes in a text such as ``8G``, ``500M`` or ``1.5GB``, where a K is 1024.

    Raises:
        ValueError: another text.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]?)(?:I?B)?", text.strip().upper(), re.ASCII)
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not size:
        raise ValueError(f"max_memory: expected a size such as 8G or 500M, got '{text}'")
    return size


def describe(size: int) -> str:
    """A number of bytes in words, such as ``1.5 GiB``."""
    if size >= 2**60:  # headers may name any number, also one that no float holds
        return "more than an exbibyte"
    return f"{size / 2**30:,.1f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"
