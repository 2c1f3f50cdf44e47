"""What the C library does with the memory of tensors that are freed."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # as glibc's malloc.h numbers them
_NEVER = -1
_LARGEST = 32 << 20  # bytes: glibc takes no greater threshold
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")


def keep_freed_memory() -> bool:
    """Keep memory that is freed for what is allocated next, instead of giving it back to the system.

    By default glibc returns what is free at the end of its heap, so that a training step on a CPU, whose
    tensors are of some megabytes, gets new pages from the kernel each time, all of them zeroed first. The
    price is that the process holds on to the most that it has needed so far, and that all its threads share
    one heap. Arrays above 32 MiB are given back as before. ``examples/benchmarks/freed_memory.py`` measures
    what it gains.

    For the whole process and for good; ``pyro-fmvae`` calls it first of all.

    Returns:
        Whether glibc was told so; another allocator that is preloaded goes its own way. It is not where the
        C library is another one, nor where the environment has settings of the same already
        (:func:`settings_of_environment`).
    """
    if settings_of_environment():
        return False
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # no such thing on Windows
        return False
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = (
        (_MMAP_THRESHOLD, _LARGEST),
        (_TRIM_THRESHOLD, _NEVER),
        (_ARENA_MAX, 1),  # heaps of other threads are given back whenever they are empty
    )
    return all([library.mallopt(name, value) for name, value in settings])


def settings_of_environment() -> list[str]:
    """Names of variables of the environment that tell glibc what to do with freed memory."""
    names = [name for name in _VARIABLES if name in os.environ]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        names.append("GLIBC_TUNABLES")
    return names
