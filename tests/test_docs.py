"""docs/api.md documents every module of the package, and none that does not exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_api_page_lists_every_module():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "pyro_fmvae").rglob("*.py")
        if not path.stem.startswith("_")
    }
    listed = re.findall(
        r"^\.\. automodule:: (\S+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.M
    )
    assert len(listed) == len(set(listed)), "a module is listed twice"
    assert sorted(modules - set(listed)) == [], "missing: add a line '.. automodule:: NAME' to docs/api.md"
    assert sorted(set(listed) - modules) == [], "listed in docs/api.md, but gone"
