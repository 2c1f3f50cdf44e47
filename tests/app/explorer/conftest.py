import pytest

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.runs.trained import load
from tests.app.explorer.explored_runs import train_runs


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Kind → folder of a run. Tests that write into one copy it."""
    return train_runs(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="module")
def explored(folders):
    return {kind: Exploration(load(folder, "cpu")) for kind, folder in folders.items()}
