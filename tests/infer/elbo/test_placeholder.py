import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae.distributions import Assignment, Component, NaturalDirichlet, NaturalNormalGamma
from pyro_fmvae.infer.elbo.lazy import Unsampled
from pyro_fmvae.infer.elbo.shorthand import PlaceholderMessenger
from tests.infer.programs import natural_components, natural_weights, nodes

REFUSED = "site 'r': its value is needed, but TraceConjugate_ELBO integrates over it in closed form"


@pytest.fixture(params=[torch.float32, torch.float64, torch.int64], ids=str)
def value(request):
    return Unsampled.like(torch.Size((2, 3)), request.param, "r")


@pytest.mark.parametrize(
    "ask",
    [
        bool,
        lambda v: bool((v > 0).any()),
        lambda v: int(v.sum()),
        lambda v: float(v[0, 0] + 1.0),
        lambda v: v[0, 0].item(),
        lambda v: (2 * v).tolist(),
        lambda v: torch.zeros(2, 3)[v.long()].exp().detach().numpy(),
        lambda v: range(3)[v[0, 0].long()],
        lambda v: dist.Normal(v * 1.0, 1.0, validate_args=True),
    ],
)
def test_whoever_asks_for_a_number_gets_the_site(value, ask):
    with pytest.raises(ValueError, match=REFUSED):
        ask(value)


def assign_by_mask(r):
    target = torch.zeros(2, 3)
    target[r == 1] = torch.ones(2, 3)[r == 1]


def assign_all(r):
    torch.zeros(2, 3, dtype=r.dtype)[:] = r


@pytest.mark.parametrize(
    "write",
    [
        assign_by_mask,
        assign_all,
        lambda r: torch.zeros(2, 3, 4).scatter_(-1, r.unsqueeze(-1), 1.0),
        lambda r: torch.empty(2, 3, dtype=r.dtype).copy_(r),
        lambda r: torch.add(r, 1, out=torch.zeros(2, 3, dtype=r.dtype)),
        lambda r: torch.zeros(2, 3).masked_fill_(r > 0, 1.0),
    ],
)
def test_nobody_writes_it_into_a_tensor(write):
    with pytest.raises(ValueError, match=REFUSED):
        write(Unsampled.like(torch.Size((2, 3)), torch.int64, "r"))


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_a_copy_behind_its_back_is_no_index():
    copy = torch.tensor(Unsampled.like(torch.Size((2, 3)), torch.int64, "r"))
    assert (copy == torch.iinfo(torch.int64).min).all()
    with pytest.raises(IndexError):
        torch.zeros(3)[copy]


@pytest.mark.parametrize("use", [lambda v: v.exp(), lambda v: torch.ones(3).index_select(0, v[0].long())])
def test_results_have_shape_and_dtype_but_no_value(value, use):
    value = value if value.is_floating_point() else value.long()
    result = use(value)
    assert isinstance(result, Unsampled)
    assert result.is_floating_point()
    assert result.as_subclass(torch.Tensor).isnan().all()


def test_shape_and_dtype_are_known(value):
    assert value.shape == (2, 3)
    assert value.unsqueeze(0).shape == (1, 2, 3)
    assert value.dim() == 2
    assert value.to(torch.float32).dtype == torch.float32
    assert (value > 0).dtype == torch.bool


def test_gradients_of_a_poisoned_value_do_not_exist():
    weight = torch.ones(3, requires_grad=True)
    assert not (Unsampled.like(torch.Size((3,)), torch.float64, "r") * weight).requires_grad


def test_only_integrated_sites_are_replaced():
    def program():
        pyro.sample("weights", NaturalDirichlet(natural_weights(2, 3)))
        lp = pyro.sample("loc_precision", NaturalNormalGamma(natural_components(2, 3, 4).squeeze(0)))
        r = pyro.sample("r", Assignment(torch.full((2, 1, 3), 1 / 3)).expand([2, 5]))
        pyro.sample("categorical", dist.Categorical(torch.ones(3)))
        pyro.sample("normal", dist.Normal(0.0, 1.0))
        pyro.sample("observed", dist.Categorical(torch.ones(3)), obs=torch.tensor(1))
        pyro.sample("z", Component(lp, r), obs=torch.zeros(2, 5, 4))

    with PlaceholderMessenger():
        trace = nodes(program)
    replaced = {name for name, s in trace.items() if isinstance(s.get("value"), Unsampled)}
    assert replaced == {"weights", "loc_precision", "r", "categorical"}
    for name in replaced:
        assert trace[name]["value"].shape == trace[name]["fn"].shape()
