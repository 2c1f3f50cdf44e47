"""Files are read by readers that build no objects: no module of the package has another one."""

import ast
from pathlib import Path

import pytest

import pyro_fmvae

PACKAGE = Path(pyro_fmvae.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}
READERS = {
    "torch.load",
    "np.load",
    "numpy.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "pd.read_pickle",
}


def unsafe(source):
    """Lines of a module that could unpickle."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            if MODULES & {name.partition(".")[0] for name in names}:
                yield node.lineno
        if isinstance(node, ast.Call):
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            default = "True" if ast.unparse(node.func) in READERS else "False"
            if options.get("allow_pickle", default) != "False":
                yield node.lineno


def test_nothing_in_the_package_unpickles():
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in unsafe(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        *(
            "import pickle",
            "from pickle import loads",
            "import joblib.memory",
            "from six.moves import cPickle",
        ),
        *("torch.load(path)", "np.load(path)", "np.load(path, allow_pickle=True)", "yaml.load(text)"),
        "np.lib.format.read_array(file, allow_pickle=flag)",
    ],
)
def test_it_would_be_noticed(line):
    assert list(unsafe(line)) == [1]
