"""Published files, which come over HTTPS and are compared with their published SHA-256."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

TIMEOUT: Final = 60.0
"""Seconds without an answer after which a download is given up."""


class Source(NamedTuple):
    """Where the files of a data set are published."""

    url: str
    """Address of the folder that holds them, with a slash at its end."""
    sha256: Mapping[str, str]
    """Checksum of each file, by its name."""


@contextmanager
def downloaded(name: str, source: Source, root: Path) -> Iterator[Path]:
    """Download files into a temporary folder in the root, so that what is broken off leaves nothing there.

    Args:
        name: of the data set, for messages.
        source: the files.
        root: the folder that data sets lie in; it is made if it is missing.

    Yields:
        The temporary folder. Whatever is to stay has to be moved out of it.

    Raises:
        FileNotFoundError: no answer, another file than the published one, or a file that cannot be written.
    """
    from pooch import HTTPDownloader, retrieve  # needed only here

    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as temporary:
            folder = Path(temporary) / "files"
            for file, digest in source.sha256.items():
                loader = HTTPDownloader(timeout=TIMEOUT)
                retrieve(source.url + file, f"sha256:{digest}", file, folder, downloader=loader)
            yield folder
    except (OSError, ValueError) as error:  # of requests and the disk, and of a checksum
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileNotFoundError(f"data_root: {name} could not be downloaded to {root}: {reason}") from error
