import json

import numpy as np
import pytest
import torch

from pyro_fmvae.app.recipes import codes_of, configure, true_sources
from pyro_fmvae.app.recipes.pictures import activity_measures, source_measures
from pyro_fmvae.app.runs import load
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.data.sets.bars import bars_truth
from pyro_fmvae.data.sets.smileys import load_smiley, smiley
from pyro_fmvae.distributions import SpikeAndSlab
from pyro_fmvae.learn.cluster_tree import Clusters
from pyro_fmvae.models import BinarySparseCoding
from pyro_fmvae.models.em.binary_em import BinaryEM
from tests.app.recipes.choices import recipe
from tests.models.small import binary_data, small_model
from tests.models.sparse import small_sparse_model
from tests.small_runs import succeed


def test_a_code_is_the_mean_of_a_gaussian():
    model, x = small_model((2, 3)), binary_data()
    assert torch.equal(model.code(x), model.encoder(x)[0])


def test_a_sparse_code_has_exact_zeros():
    model, x = small_sparse_model(), binary_data()
    q = SpikeAndSlab(*model.encoder(x))
    code = model.code(x)
    assert torch.equal(code != 0, q.probs > 0.5)
    assert torch.equal(code[code != 0], q.loc[code != 0])
    assert 0 < (code == 0).double().mean() < 1


@pytest.mark.parametrize("group_size", [1, 2])
def test_a_binary_code_is_what_is_more_likely_than_not(group_size):
    model, x = BinarySparseCoding((2, 3), 20, BinaryEM(4, group_size=group_size)).double(), binary_data()
    torch.nn.init.normal_(model.weight)
    mean, code = model.posterior(x).mean, model.code(x)
    assert code.dtype == mean.dtype
    assert torch.equal(code, torch.where(mean > 0.5, 1.0, 0.0))
    assert 0 < code.mean() < 1
    assert ((mean > 0.01) & (mean < 0.99)).any()


def test_codes_are_decoded_by_what_the_model_has():
    model, z = small_model((2, 3)), torch.randn(5, 4)
    assert torch.equal(model.decode(z), model.observation.mean(model.decoder(z)))


def test_codes_of_all_rows_in_order():
    model, x = small_sparse_model().float(), binary_data().float()
    with torch.no_grad():
        expected = model.code(x)
    codes = codes_of(model, Batches(Split(x), 3, shuffle=False))
    assert codes == pytest.approx(expected, abs=1e-6)


def test_true_sources_are_those_of_the_images():
    assert true_sources(configure(data="mnist"), "valid", 5) is None
    assert true_sources(configure(data="smiley", hold_out=0.25), "valid", 5) is None
    assert true_sources(configure(data="smiley"), None, 5) is None
    sources = true_sources(configure(data="smiley"), "valid", 50)
    assert sources.shape == (50, 18)
    labels = load_smiley().valid.labels[:50].numpy()
    assert ((sources != 0) == np.repeat(labels, (3, 5, 6, 4), axis=1)).all()


def test_measures_of_the_sources_themselves():
    sources = (lambda faces: faces.presence * faces.values)(smiley(2000, 5))
    codes = torch.from_numpy(sources)
    found = activity_measures(codes) | source_measures(codes, sources)
    assert found["active_latents"] == 18
    assert found["share_on"] == pytest.approx(0.5, abs=0.02)
    named = found["sources"]
    assert [named[name] for name in ("active", "eyes", "mouth", "hat", "bowtie")] == [18, 3, 5, 6, 4]
    assert named["block_concentration"] > 0.8
    assert source_measures(codes, None) == source_measures(codes[:1], sources[:1]) == {}


def test_codes_that_are_off_everywhere():
    codes, sources = torch.zeros(30, 4), np.random.default_rng(0).normal(size=(30, 18))
    found = activity_measures(codes) | source_measures(codes, sources)
    assert (found["active_latents"], found["share_on"], found["sources"]["active"]) == (0, 0, 0)
    assert found["sources"]["block_concentration"] is None


def test_measures_of_units():
    """Those of the truth in another order and length, one of them upside down, and one that is no bar."""
    truth = bars_truth("bars-max").dictionary.flatten(1)
    units = torch.cat([truth.flip(0) * torch.linspace(0.1, 2, 8)[:, None], torch.ones(1, 16)])
    model = BinarySparseCoding((4, 4), 20, BinaryEM(9))
    model.weight.data, model.log_scale.data = units.T.contiguous(), torch.tensor(0.3).log()
    of_bars, of_others = recipe("bsc", data="bars-max"), recipe("bsc", data="bars-max.npz")
    assert of_bars._unit_measures(model) == {"units": 9, "noise": pytest.approx(0.3), "recovered": 8}
    model.weight.data[:, 2] *= -1
    assert of_bars._unit_measures(model)["recovered"] == 7
    assert of_bars.summary(model) == ["units: 9, standard deviation of the noise: 0.3, recovered units: 7"]
    assert of_others._unit_measures(model).keys() == {"units", "noise"}
    assert of_others.summary(model) == ["units: 9, standard deviation of the noise: 0.3"]


@pytest.mark.usefixtures("single_precision")
def test_clusters_of_a_single_factor_are_components_of_its_codes(tmp_path):
    """Three kinds in a factor of eight components, through the files of a run."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 300)
    x = rng.normal(6.0 * np.tile(np.eye(3), 4)[kinds], 1.0)
    np.savez(tmp_path / "a.npz", x=x, labels=kinds[:, None])
    options = {"model": "fmvae", "factors": 8, "pretrain-iterations": 300, "joint-iterations": 300}
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    folder = tmp_path / "run"
    assert "clusters of the codes: 3" in succeed(
        "train", "--data", tmp_path / "a.npz", "--out", folder, *given, figures=True
    )
    measures = json.loads(succeed("evaluate", folder, "--data", tmp_path / "a.npz"))
    (agreement,) = measures["clustering"].values()
    assert measures["clusters"] == agreement["clusters"]["number"] == 3
    assert agreement["clusters"]["ari"] > 0.98
    run = load(folder, "cpu")
    encoded = run.encode(x)
    mixture = run.model.code_mixture
    assert Clusters.of_model(run.model).depth == 0.0
    gamma = mixture.table(mixture.observations(torch.from_numpy(encoded["mean"]))).softmax(-1)
    np.testing.assert_array_equal(encoded["cluster"], gamma.argmax(-1))
    np.testing.assert_allclose(encoded["cluster_probability"], gamma.amax(-1), atol=1e-6)
    assert (folder / "figures" / "clusters.png").exists()
    assert "is finished already" in succeed("train", "--resume", folder)


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("factors", "labels"), [("2,2", None), ("2", 1)])
def test_several_factors_and_labelled_ones_have_no_clusters(tmp_path, factors, labels):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.normal(size=(60, 3)), labels=rng.integers(0, 2, (60, 1)))
    given = ["--labels", labels, "--per-value", 1] if labels else []
    succeed(
        *("train", "--data", tmp_path / "a.npz", "--out", tmp_path / "run", "--model", "fmvae"),
        *("--factors", factors, "--pretrain-iterations", 2, "--joint-iterations", 2, *given),
    )
    run = load(tmp_path / "run", "cpu")
    assert run.model.code_mixture is None
    assert "cluster" not in run.encode(np.zeros((2, 3)))
