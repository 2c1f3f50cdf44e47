"""Every module imports without the packages of the extras, but for the page that is made of one."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"faiss-cpu": "faiss", "myst-nb": "myst_nb", "pytest-xdist": "xdist"}
"""Names of modules that are not those of their packages."""
WITHOUT = """
import importlib, pkgutil, sys

class Absent:
    asked = set()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            self.asked.add(name)
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Absent())
import pyro_fmvae
page = ("pyro_fmvae.app.explorer.layout", "pyro_fmvae.app.explorer.tabs.")  # `serve` imports it
for module in pkgutil.walk_packages(pyro_fmvae.__path__, "pyro_fmvae."):
    if not module.name.endswith("__main__") and not module.name.startswith(page):
        importlib.import_module(module.name)
assert "gradio" not in Absent.asked, "gradio is asked for though no page is served"
try:
    importlib.import_module("pyro_fmvae.app.explorer.layout")
except ImportError as error:
    assert str(error) == "gradio is not installed"
else:
    sys.exit("a missing package goes unnoticed")
"""


def extras():
    """Modules of the packages that only extras ask for."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    asked = "\n".join(setup["options.extras_require"].values())
    names = re.findall(r"^([\w-]+)", re.sub(r"#.*", "", asked), re.M)
    return sorted({MODULES.get(name, name) for name in names})


def test_the_core_imports_without_any_extra_and_only_a_served_page_asks_for_gradio():
    assert {"pyarrow", "onnx", "huggingface_hub"} <= set(extras())
    subprocess.run([sys.executable, "-c", WITHOUT, *extras()], check=True, cwd=ROOT)


HEAVY = (
    "gradio jsonargparse matplotlib pandas PIL pooch scipy.optimize scipy.special sklearn torchvision yaml"
)


LIBRARY = "AutoConjugate, CapturedSVI, FactorialMixtureVAE, NaturalGradient, TraceConjugate_ELBO, fit"


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [("import pyro_fmvae", f"torch pyro {HEAVY}"), (f"from pyro_fmvae import {LIBRARY}", HEAVY)],
)
def test_what_is_not_used_is_not_imported(statement, heavy):
    """The root imports a name when it is used; models need nothing heavy that Pyro does not import either."""
    program = f"import sys; {statement}; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    command = [sys.executable, "-c", program, *heavy.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not done.stdout.split()
