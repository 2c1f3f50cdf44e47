"""The toy of examples/vsc_toy.py: sparse coding finds every source, and a VAE mixes them."""

from pathlib import Path

import pytest

from tests.scripts import imported

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def toy():
    with imported(EXAMPLES, ["vsc_toy"]) as modules:
        yield modules.vsc_toy


def test_data_are_those_of_the_docstring(toy):
    data = toy.Data(0)
    assert data.train.shape == (toy.TRAIN, 20) and data.test.shape == (toy.TEST, 20)
    present = data.sources != 0
    assert present.float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert data.sources[present].mean().item() == pytest.approx(1.5, abs=0.03)
    assert data.sources[present].std().item() == pytest.approx(0.5, abs=0.02)
    norm = data.test.square().sum(-1).mean().item()
    assert norm == pytest.approx(20 * 0.3**2 + 9 * data.sources.square().sum(-1).mean().item(), rel=0.02)
    assert sum(len(batch) for batch in data) == toy.TRAIN


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_sparse_coding_finds_every_source(toy, seed):
    sparse, plain = (toy.learn(make, seed, 2500) for make in toy.MODELS.values())
    assert sparse.active == 6
    assert sparse.correlation > 0.95
    assert sparse.contrast > 0.8
    assert plain.contrast < 0.4
    assert sparse.elbo > plain.elbo + 2
