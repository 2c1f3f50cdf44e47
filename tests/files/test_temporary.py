"""Each case runs in a process of its own, since what is set there stays set."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_fmvae

slow = pytest.mark.slow
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="each user has a temporary folder")

ROOT = str(Path(pyro_fmvae.__file__).parents[1])
PLACES = """
import json, os, sys, tempfile
from torch._inductor.runtime.runtime_utils import cache_dir, default_cache_dir
from pyro_fmvae.files.temporary import keep_temporary_files_private

for case in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # set by the import
        os.environ.update(case["environment"])
        tempfile.tempdir = None
        os.geteuid = lambda: case["user"]
        folder = keep_temporary_files_private()
        mode = oct(os.stat(folder).st_mode)
        print(json.dumps([str(folder), mode, cache_dir(), default_cache_dir(), tempfile.mkdtemp()]))
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""
COMPILE = """
import sys
if sys.argv[1] == "private":
    from pyro_fmvae.files.temporary import keep_temporary_files_private
    keep_temporary_files_private()
import torch
torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.zeros(2))
"""
PRIVATE = oct(stat.S_IFDIR | stat.S_IRWXU)
MINE = f"pyro-fmvae-{os.geteuid()}" if hasattr(os, "geteuid") else ""


def run(program, *arguments, temporary):
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment = kept | {"TMPDIR": str(temporary), "PYTHONPATH": ROOT}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


OPEN, LINK, FILE, ANOTHERS = "open to others", "a link", "a file", "somebody else's"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """For each case, the system's temporary folder, what was in it, and the places that a process found."""
    folders = {kind: tmp_path_factory.mktemp("temporary") for kind in ("new", OPEN, LINK, FILE, ANOTHERS)}
    (folders[OPEN] / MINE).mkdir()
    (folders[OPEN] / MINE).chmod(0o770)
    (folders[LINK] / "theirs").mkdir(mode=0o700)
    (folders[LINK] / MINE).symlink_to(folders[LINK] / "theirs")
    (folders[FILE] / MINE).touch()
    other = os.geteuid() + 1
    (folders[ANOTHERS] / f"pyro-fmvae-{other}").mkdir(mode=0o700)
    folders["again"] = folders["own cache"] = folders["new"]
    before = {kind: set(folder.rglob("*")) for kind, folder in folders.items()}
    cases = [
        {
            "user": other if kind == ANOTHERS else os.geteuid(),
            "environment": {"TMPDIR": str(folder)}
            | ({"TORCHINDUCTOR_CACHE_DIR": str(folder / "mine")} if kind == "own cache" else {}),
        }
        for kind, folder in folders.items()
    ]
    lines = run(PLACES, json.dumps(cases), temporary=tmp_path_factory.mktemp("parent"))
    places = map(json.loads, lines)
    return {kind: (folders[kind], before[kind], *found) for kind, found in zip(folders, places, strict=True)}


@slow
@pytest.mark.parametrize("kind", ["new", "again"])
def test_everything_is_in_one_private_folder_that_stays(found, kind):
    temporary, _, folder, mode, *places = found[kind]
    assert (Path(folder), mode) == (temporary / MINE, PRIVATE)
    assert len(places) == 3
    assert all(place.startswith(f"{folder}/") for place in places)
    assert tuple(places[:2]) == found["new"][4:6]
    assert set(os.listdir(temporary)) == {MINE, "mine"}


@slow
@pytest.mark.parametrize("kind", [OPEN, LINK, FILE, ANOTHERS])
def test_a_folder_that_others_may_have_written_to_is_not_used(found, kind):
    temporary, before, folder, mode, *places = found[kind]
    assert (Path(folder).parent, mode) == (temporary, PRIVATE)
    assert all(place.startswith(f"{folder}/") for place in places)
    assert set(temporary.rglob("*")) == before  # nothing was written there, and its own folder is gone


@slow
def test_a_cache_of_the_users_own_stays(found):
    temporary, _, folder, _, cache, default, _ = found["own cache"]
    assert cache == str(temporary / "mine")
    assert default.startswith(f"{folder}/")


@pytest.mark.slow
def test_planted_code_is_not_run_and_compiled_code_is_kept(tmp_path):
    run(COMPILE, "default", temporary=tmp_path)
    (place,) = tmp_path.glob("torchinductor_*")
    marker = tmp_path / "marker"
    for path in place.rglob("*.py"):
        path.write_text(f"open({str(marker)!r}, 'w').close()\n{path.read_text()}")
    run(COMPILE, "private", temporary=tmp_path)
    assert not marker.exists()
    kept = built(tmp_path / MINE)
    assert kept
    run(COMPILE, "private", temporary=tmp_path)
    assert built(tmp_path / MINE) == kept
    run(COMPILE, "default", temporary=tmp_path)
    assert marker.exists()  # as it would be without the private folder


def built(folder):
    """What the compiler made, with the times when it did."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in (".so", ".gch")}
