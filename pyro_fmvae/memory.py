"""Memory of the process: what it has taken, and settings of the C library for that of freed tensors."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # as glibc's malloc.h numbers them
_NEVER = -1
_LARGEST = 32 << 20  # bytes: glibc takes no greater threshold
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
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, or KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
