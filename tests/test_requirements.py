"""The file of pinned versions belongs to the requirements in setup.cfg."""

import re
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOR = {"python_version": "3.11", "platform_system": "Linux"}


def required():
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"] + config["options.extras_require"]["dev"]
    found = [Requirement(line) for line in lines.splitlines() if line and not line.startswith("#")]
    return [one for one in found if one.marker is None or one.marker.evaluate(FOR)]


def test_every_requirement_is_pinned_within_its_bounds_and_hashed():
    text = (ROOT / ".ci" / "requirements.txt").read_text()
    pins = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n {4}--hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[^#\s]", text, re.MULTILINE))  # nothing else is in it
    versions = {canonicalize_name(name): version for name, version, _ in pins}
    assert len(required()) > 20
    for requirement in required():
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement
