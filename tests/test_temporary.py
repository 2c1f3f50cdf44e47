"""Each case runs in a process of its own: what is set there stays set."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_fmvae

ROOT = str(Path(pyro_fmvae.__file__).parents[1])
PLACES = """
import os, stat, tempfile
from pyro_fmvae.temporary import keep_temporary_files_private
folder = keep_temporary_files_private()
from torch._inductor.runtime.runtime_utils import cache_dir, default_cache_dir
mode = oct(stat.S_IMODE(os.stat(folder).st_mode))
print(folder, mode, cache_dir(), default_cache_dir(), tempfile.mkdtemp(), sep="\\n")
"""
COMPILE = """
import sys
if sys.argv[1] == "private":
    from pyro_fmvae.temporary import keep_temporary_files_private
    keep_temporary_files_private()
import torch
torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.zeros(2))
"""


def run(program, *arguments, temporary, **variables):
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment = kept | {"TMPDIR": str(temporary), "PYTHONPATH": ROOT} | variables
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_everything_is_private_and_removed(tmp_path):
    folder, mode, *places = run(PLACES, temporary=tmp_path)
    assert (Path(folder).parent, mode) == (tmp_path, oct(stat.S_IRWXU))
    assert len(places) == 3
    assert all(place.startswith(f"{folder}/") for place in places)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_of_the_users_own_stays(tmp_path):
    mine = tmp_path / "mine"
    folder, _, cache, default, _ = run(PLACES, temporary=tmp_path, TORCHINDUCTOR_CACHE_DIR=str(mine))
    assert cache == str(mine)
    assert default.startswith(f"{folder}/")


@pytest.mark.slow
def test_planted_code_is_not_run(tmp_path):
    run(COMPILE, "default", temporary=tmp_path)
    (place,) = tmp_path.glob("torchinductor_*")
    marker = tmp_path / "marker"
    for path in place.rglob("*.py"):
        path.write_text(f"open({str(marker)!r}, 'w').close()\n{path.read_text()}")
    run(COMPILE, "private", temporary=tmp_path)
    assert not marker.exists()
    run(COMPILE, "default", temporary=tmp_path)
    assert marker.exists()  # as it would be without the private folder
