"""A server on this machine in the place of those that publish data sets."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from pyro_fmvae.data.download import Source


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, *_):
        pass


@contextmanager
def published(folder) -> Iterator[Source]:
    """Serve the files of a folder."""
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Source(f"http://127.0.0.1:{server.server_port}/", sums)
        finally:
            server.shutdown()
            thread.join()
