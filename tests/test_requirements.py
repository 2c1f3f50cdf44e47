"""The files of pinned versions belong to the requirements in setup.cfg."""

import re
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOR = {"python_version": "3.11", "platform_system": "Linux"}


def requirements(*extras):
    """Those of the package and of the extras, without their comments."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    of_extras = config["options.extras_require"]
    texts = (config["options"]["install_requires"], *(of_extras[name] for name in extras or of_extras))
    lines = (line for text in texts for line in text.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_every_requirement_is_pinned_within_its_bounds_and_hashed():
    text = (ROOT / ".ci" / "requirements.txt").read_text()
    pins = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n {4}--hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[^#\s]", text, re.MULTILINE))  # nothing else is in it
    versions = {canonicalize_name(name): version for name, version, _ in pins}
    required = [one for one in requirements("dev") if one.marker is None or one.marker.evaluate(FOR)]
    assert len(required) > 20
    for requirement in required:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_every_requirement_has_a_lower_bound_which_the_lowest_versions_are():
    lowest = set()
    for requirement in requirements():
        (bound,) = (one.version for one in requirement.specifier if one.operator == ">=")
        requirement.specifier = SpecifierSet(f"=={bound}")
        lowest.add(str(requirement))
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    pins = [str(Requirement(line)) for line in lines if not line.startswith("#")]
    assert sorted(pins) == sorted(lowest)
