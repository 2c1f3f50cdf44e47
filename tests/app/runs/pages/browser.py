"""A page as a headless browser opens it: what it requested, and what its console said."""

import json
import shutil
import subprocess
from typing import NamedTuple

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Opened(NamedTuple):
    text: str
    """HTML of the page after it was opened."""
    requested: set[str]
    """Addresses that it asked for, its own file and embedded pictures aside."""
    console: list[str]


def opened(page, folder):
    """Open a page with name resolution off. The browser's own requests have no origin, and do not count."""
    log = folder / "requests.json"
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom"),
        *("--enable-logging=stderr", "--host-resolver-rules=MAP * 0.0.0.0"),
        *(f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"),
    ]
    done = subprocess.run([BROWSER, *options, page.as_uri()], capture_output=True, text=True, timeout=120)
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    requested = {
        event["url"]
        for event in events
        if "url" in event and event.get("initiator", "not an origin") != "not an origin"
    }
    return Opened(done.stdout, requested, [line for line in done.stderr.splitlines() if "CONSOLE" in line])
