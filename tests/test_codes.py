import numpy as np
import pytest
import torch

from pyro_fmvae.codes import latent_code, latent_codes, measures, true_sources
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.data.smileys import load_smiley, smiley
from pyro_fmvae.distributions import SpikeAndSlab
from tests.models.small import binary_data, small_model
from tests.models.sparse import small_sparse_model


def test_a_code_is_the_mean_of_a_gaussian():
    model, x = small_model((2, 3)), binary_data()
    assert torch.equal(latent_code(model, x), model.encoder(x)[0])


def test_a_sparse_code_has_exact_zeros():
    model, x = small_sparse_model(), binary_data()
    q = SpikeAndSlab(*model.encoder(x))
    code = latent_code(model, x)
    assert torch.equal(code != 0, q.probs > 0.5)
    assert torch.equal(code[code != 0], q.loc[code != 0])
    assert 0 < (code == 0).double().mean() < 1


def test_codes_of_all_rows_in_order():
    model, x = small_sparse_model().float(), binary_data().float()
    with torch.no_grad():
        expected = latent_code(model, x)
    codes = latent_codes(model, Batches(Split(x), 3, shuffle=False))
    assert codes == pytest.approx(expected, abs=1e-6)


def test_true_sources_are_those_of_the_images():
    assert true_sources(TrainConfig(data="mnist"), "valid", 5) is None
    assert true_sources(TrainConfig(data="smiley", hold_out=0.25), "valid", 5) is None
    sources = true_sources(TrainConfig(data="smiley"), "valid", 50)
    assert sources.shape == (50, 18)
    labels = load_smiley().valid.labels[:50].numpy()
    assert ((sources != 0) == np.repeat(labels, (3, 5, 6, 4), axis=1)).all()


def test_measures_of_the_sources_themselves():
    sources = (lambda faces: faces.presence * faces.values)(smiley(2000, 5))
    found = measures(torch.from_numpy(sources), sources, sparse=True)
    assert found["active_latents"] == 18
    assert found["share_on"] == pytest.approx(0.5, abs=0.02)
    named = found["sources"]
    assert [named[name] for name in ("active", "eyes", "mouth", "hat", "bowtie")] == [18, 3, 5, 6, 4]
    assert named["block_concentration"] > 0.8
    assert measures(torch.from_numpy(sources), None, sparse=False) == {}


def test_codes_that_are_off_everywhere():
    found = measures(torch.zeros(30, 4), np.random.default_rng(0).normal(size=(30, 18)), sparse=True)
    assert (found["active_latents"], found["share_on"], found["sources"]["active"]) == (0, 0, 0)
    assert found["sources"]["block_concentration"] is None
