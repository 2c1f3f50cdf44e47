import pytest
import torch

from pyro_fmvae.infer.seeding import kmeans
from pyro_fmvae.learn import fmvae_phases as module
from pyro_fmvae.learn.fmvae_phases import full_clusters
from tests.learn.clusters import stripes


def same(found, truth):
    """True if each cluster is one of the true ones."""
    pairs = torch.stack([found, truth]).unique(dim=1)
    return pairs.shape[1] == len(truth.unique())


@pytest.mark.parametrize("searched", [2000, 90])
def test_clusters_may_be_long_and_aslant(monkeypatch, searched):
    monkeypatch.setattr(module, "SEARCHED", searched)
    points, truth = stripes()
    assert same(full_clusters(points, 3, torch.Generator().manual_seed(0)), truth)
    assert not same(kmeans(points, 3, torch.Generator().manual_seed(0)), truth)


@pytest.mark.gpu
@pytest.mark.parametrize("each", [1, 30])
def test_points_on_a_gpu(each):
    points, _ = stripes(each)
    there, here = (full_clusters(x, 3, torch.Generator().manual_seed(0)) for x in (points.cuda(), points))
    assert there.is_cuda
    assert torch.equal(there.cpu(), here)


def test_few_points_have_the_clusters_of_k_means(monkeypatch):
    monkeypatch.setattr(module, "mixture_of_rows", None)  # is not asked
    points, _ = stripes(each=1)
    assert len(full_clusters(points, 3, torch.Generator().manual_seed(0)).unique()) == 3


@pytest.mark.parametrize(
    "points", [torch.ones(9, 2), torch.zeros(1, 3), torch.eye(2).repeat(4, 1)], ids=["equal", "one", "two"]
)
def test_few_distinct_points_leave_clusters_empty(points):
    found = full_clusters(points, 4, torch.Generator().manual_seed(0))
    assert found.shape == points.shape[:1] and found.dtype == torch.int64
    assert found.min() >= 0 and found.max() < 4
