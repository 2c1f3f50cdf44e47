"""What the C library does with the memory of tensors that are freed."""

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # as glibc's malloc.h numbers them
_NEVER = -1
_LARGEST = 32 << 20  # bytes: glibc takes no greater threshold
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Of the environment, that set the same."""


def keep_freed_memory() -> bool:
    """Keep memory that is freed for what is allocated next, instead of giving it back to the system.

    By default glibc returns what is free at the end of its heap, so that a training step on a CPU, whose
    tensors are of some megabytes, gets new pages from the kernel each time, all of them zeroed first: a sixth
    of the time of a step with the convolutions of :class:`~pyro_fmvae.nn.ConvEncoder28`. The price is that
    the process holds on to the most that it has needed so far. Arrays above 32 MiB are given back as before.

    For the whole process and for good; ``pyro-fmvae`` calls it first of all.

    Returns:
        Whether it was done. It is not with another C library than glibc, and where one of the environment
        variables that set the same (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_TOP_PAD_``,
        ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``) is there already.
    """
    if any(name in os.environ for name in VARIABLES):
        return False
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # no such thing on Windows
        return False
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _LARGEST))
    return all([library.mallopt(name, value) for name, value in settings])
