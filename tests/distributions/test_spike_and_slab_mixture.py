import math

import pyro
import pytest
import torch
from pyro import poutine
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import SpikeAndSlab, SpikeAndSlabMixture

U, J, B = 4, 3, 5


def products(*batch, dim=J, spread=1.0, dtype=torch.float64):
    """Spike-and-slabs of batch shape [*batch, J]."""
    shape = (*batch, dim)
    parameters = spread * torch.randn(shape), 0.4 + torch.rand(shape), 1.5 * torch.randn(shape)
    return SpikeAndSlab(*(t.to(dtype) for t in parameters))


def row(fn, index):
    return SpikeAndSlab(fn.loc[index], fn.scale[index], fn.logits[index])


def random_weights(*batch):
    return torch.randn(*batch, U).log_softmax(-1)


def pairwise(q, p):
    """KL(q_b || p_u) one by one: [B, U]."""
    rows = range(p.batch_shape[0])
    return torch.stack(
        [
            torch.stack([kl_divergence(row(q, b), row(p, u)).sum() for u in rows])
            for b in range(q.batch_shape[0])
        ]
    )


def test_log_prob_is_the_mean_of_the_components():
    components = products(U)
    mixture = SpikeAndSlabMixture(components)
    z = mixture.sample((50,))
    assert 10 < (z == 0).sum() < 140
    expected = torch.stack([row(components, u).log_prob(z).sum(-1).exp() for u in range(U)]).mean(0).log()
    assert_close(mixture.log_prob(z), expected)


def test_mass_is_one():
    mixture = SpikeAndSlabMixture(products(U, dim=1))
    z = torch.linspace(-15, 15, 100_000)  # without 0
    density = mixture.log_prob(z.unsqueeze(-1)).exp()
    zero = mixture.log_prob(torch.zeros(1)).exp()
    assert_close(torch.trapezoid(density, z) + zero, torch.tensor(1.0), rtol=0, atol=1e-9)


def test_draws(assert_mean, device):
    parameters = [t.to(device) for t in (torch.randn(U, 2), 0.5 + torch.rand(U, 2), torch.randn(U, 2))]
    components = SpikeAndSlab(*parameters)
    z = SpikeAndSlabMixture(components).sample((50_000,))
    on = (z != 0).double()
    assert_mean(z, components.mean.mean(0))
    assert_mean(z.square(), (components.variance + components.mean.square()).mean(0))
    assert_mean(on.prod(-1), components.probs.prod(-1).mean())  # latents depend on each other


def test_divergences_are_those_of_pairs():
    q, components = products(B), products(U)
    divergences = SpikeAndSlabMixture(components).divergences(q)
    assert divergences.shape == (B, U)
    assert_close(divergences, pairwise(q, components))


def test_gradients_of_divergences_are_those_of_pairs():
    leaves = [torch.randn(2, n, J).unbind() for n in (B, U)]
    leaves = [t.clone().requires_grad_() for pair in leaves for t in pair]
    weights = torch.randn(B, U)

    def total(divergences):
        q = SpikeAndSlab(leaves[0], leaves[1].exp(), leaves[0] - leaves[1])
        p = SpikeAndSlab(leaves[2], leaves[3].exp(), leaves[2] - leaves[3])
        return (weights * divergences(q, p)).sum()

    ours = torch.autograd.grad(total(lambda q, p: SpikeAndSlabMixture(p).divergences(q)), leaves)
    theirs = torch.autograd.grad(total(pairwise), leaves)
    for grad, expected in zip(ours, theirs, strict=True):
        assert_close(grad, expected)


@pytest.mark.parametrize("near", [-40.0, -15.0, 15.0, 40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spikes_that_are_nearly_certain(near, dtype):
    logits = torch.full((B, J), near, dtype=dtype, requires_grad=True)
    slabs = torch.zeros(B, J, dtype=dtype), torch.ones(B, J, dtype=dtype)
    q, components = SpikeAndSlab(*slabs, logits), products(U, dtype=dtype)
    for mixture in (SpikeAndSlabMixture(components), SpikeAndSlabMixture(row(q, slice(0, 2)))):
        kl = kl_divergence(q.to_event(1), mixture)
        assert torch.autograd.grad(kl.sum(), logits, retain_graph=True)[0].isfinite().all()
    assert_close(kl, torch.zeros(B, dtype=dtype), rtol=0, atol=60 * J * torch.finfo(dtype).eps)


@pytest.mark.parametrize("log_selection", [None, torch.tensor([0.1, 0.2, 0.3, 0.4]).log()])
def test_kl_is_an_upper_bound(log_selection):
    """Against Monte Carlo, on several q."""
    q, mixture = products(B), SpikeAndSlabMixture(products(U, spread=2.0), log_selection)
    z = q.sample((100_000,))
    ratio = q.to_event(1).log_prob(z) - mixture.log_prob(z)
    error = ratio.std(0) / len(z) ** 0.5
    bound = kl_divergence(q.to_event(1), mixture)
    assert bound.shape == (B,)
    assert (bound > ratio.mean(0) - 4 * error).all()
    assert (bound > ratio.mean(0) + 4 * error).any()  # no equality in disguise


def test_with_one_component_the_bound_is_the_divergence(assert_mean):
    q, components = products(B), products(1)
    expected = kl_divergence(q, components).sum(-1)
    for log_selection in (None, torch.zeros(B, 1)):
        mixture = SpikeAndSlabMixture(components, log_selection)
        assert_close(kl_divergence(q.to_event(1), mixture), expected)
    z = q.sample((100_000,))
    assert_mean(q.to_event(1).log_prob(z) - mixture.log_prob(z), expected)


def test_among_equal_components_the_bound_is_the_divergence():
    q, one = products(B), products(1)
    same = SpikeAndSlab(*(t.expand(U, J) for t in (one.loc, one.scale, one.logits)))
    assert_close(kl_divergence(q.to_event(1), SpikeAndSlabMixture(same)), kl_divergence(q, one).sum(-1))


def test_bounds_are_their_formulas():
    q, components = products(B), products(U)
    divergences = pairwise(q, components)
    best = kl_divergence(q.to_event(1), SpikeAndSlabMixture(components))
    assert_close(best, -((-divergences).exp().mean(-1)).log())
    log_selection = random_weights(B)
    weights = log_selection.exp()
    selected = kl_divergence(q.to_event(1), SpikeAndSlabMixture(components, log_selection))
    assert_close(selected, (weights * (divergences + (U * weights).log())).sum(-1))
    assert (selected > best).all()


def test_best_selection_gives_the_log_sum_exp():
    q, components = products(B), products(U)
    best = SpikeAndSlabMixture(components)
    log_selection = (-best.divergences(q)).log_softmax(-1).requires_grad_()
    selected = kl_divergence(q.to_event(1), SpikeAndSlabMixture(components, log_selection.log_softmax(-1)))
    assert_close(selected, kl_divergence(q.to_event(1), best))
    (grad,) = torch.autograd.grad(selected.sum(), log_selection)  # stationary
    assert_close(grad, torch.zeros(B, U), rtol=0, atol=1e-12)


def test_certain_selection_is_the_divergence_from_one_component_and_log_u():
    q, components = products(B), products(U)
    log_selection = torch.full((B, U), -800.0)
    log_selection[:, 2] = 0.0
    log_selection.requires_grad_()
    kl = kl_divergence(q.to_event(1), SpikeAndSlabMixture(components, log_selection))
    assert_close(kl, kl_divergence(q, row(components, 2)).sum(-1) + math.log(U))
    assert torch.autograd.grad(kl.sum(), log_selection)[0].isfinite().all()


def test_density_and_draws_do_not_depend_on_the_selection():
    components = products(U)
    mixture, selected = SpikeAndSlabMixture(components), SpikeAndSlabMixture(components, random_weights(B))
    assert (mixture.batch_shape, selected.batch_shape) == ((), (B,))
    z = mixture.sample((7, B))
    assert_close(selected.log_prob(z), mixture.log_prob(z))
    assert mixture.log_prob(z).shape == (7, B)
    assert selected.log_prob(z[0, 0]).shape == (B,)
    assert selected.sample((7,)).shape == (7, B, J)


def test_expand():
    components, q = products(U), products(6, B)
    mixture, selected = SpikeAndSlabMixture(components), SpikeAndSlabMixture(components, random_weights(B))
    for fn in (mixture, selected):
        wide = fn.expand(torch.Size((6, B)))
        assert (wide.batch_shape, wide.event_shape) == ((6, B), (J,))
        z = wide.sample()
        assert z.shape == (6, B, J)
        assert_close(wide.log_prob(z), mixture.log_prob(z))
        kl = kl_divergence(q.to_event(1), wide)
        assert_close(kl, kl_divergence(q.to_event(1), fn))
        assert_close(kl[3], kl_divergence(row(q, 3).to_event(1), fn))


def test_in_a_program():
    mixture = SpikeAndSlabMixture(products(U))

    def model():
        with pyro.plate("data", B):
            return pyro.sample("z", mixture)

    site = poutine.trace(model).get_trace().nodes["z"]
    assert site["value"].shape == (B, J)
    assert_close(site["fn"].log_prob(site["value"]), mixture.log_prob(site["value"]))


def narrow(dtype, offset=0.0):
    """40 latents with narrow slabs around means that are far from the origin, and near each other."""
    torch.manual_seed(2)
    loc = 5.0 + torch.randn(40)
    parameters = [
        (loc + 0.1 * torch.randn(n, 40), 0.02 + 0.02 * torch.rand(n, 40), torch.randn(n, 40)) for n in (B, U)
    ]
    return [SpikeAndSlab(*(t.to(dtype) for t in group)) for group in parameters]


def test_float32_keeps_its_digits_far_from_the_origin():
    """Without the centre, the error would be a hundred times larger."""
    q, components = narrow(torch.float64)
    exact = SpikeAndSlabMixture(components).divergences(q)
    assert_close(exact, pairwise(q, components))
    q, components = narrow(torch.float32)
    mixture = SpikeAndSlabMixture(components)
    divergences = mixture.divergences(q)
    assert divergences.dtype == torch.float32
    assert_close(divergences.double(), exact, rtol=2e-5, atol=1e-4)
    z = q.sample()
    expected = torch.stack([row(components, u).log_prob(z).sum(-1) for u in range(U)])
    assert_close(mixture.log_prob(z), expected.logsumexp(0) - math.log(U), rtol=2e-5, atol=1e-4)


def test_float32_keeps_its_digits_where_slabs_are_narrow_and_far_apart():
    """Terms of 1e7 that cancel: products of float32 squares would be wrong by nats."""
    torch.manual_seed(3)
    loc, logits = 2 * torch.randn(4, 40), torch.randn(4, 40)
    parameters = [t.float() for t in (loc, torch.full((4, 40), 0.002), logits)]
    q, components = (SpikeAndSlab(*(t[rows] for t in parameters)) for rows in ([0], [0, 1, 2, 3]))
    divergences = SpikeAndSlabMixture(components).divergences(q).double()
    assert divergences[0, 0].abs() < 1e-3  # from itself
    exact = pairwise(*(SpikeAndSlab(*(t[rows].double() for t in parameters)) for rows in ([0], [0, 1, 2, 3])))
    assert_close(divergences, exact, rtol=1e-6, atol=1e-3)


def test_autocast_leaves_the_products_alone():
    q, components = products(B, dtype=torch.float32), products(U, dtype=torch.float32)
    expected = SpikeAndSlabMixture(components).divergences(q)
    with torch.autocast("cpu", torch.bfloat16):
        divergences = SpikeAndSlabMixture(components).divergences(q)
    assert torch.equal(divergences, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpikeAndSlabMixture(products(2, U)), r"components: .* \[U, J\], got SpikeAndSlab of .* \[2"),
        (lambda: SpikeAndSlabMixture(Normal(torch.zeros(U, J), 1.0)), "components: .* got Normal"),
        (
            lambda: SpikeAndSlabMixture(products(U), torch.zeros(B, U - 1)),
            r"log_selection: expected shape \[\.\.\., 4\], got \[5, 3\]",
        ),
        (lambda: SpikeAndSlabMixture(products(U), torch.tensor(0.0)), r"log_selection: .* got \[\]"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_values_are_validated():
    with pytest.raises(ValueError):
        SpikeAndSlabMixture(products(U)).log_prob(torch.full((J,), math.nan))


@pytest.mark.parametrize(
    "q",
    [
        Normal(torch.zeros(J), 1.0).expand((J,)),
        SpikeAndSlab(torch.zeros(2, J), 1.0, 0.0).to_event(1),
        SpikeAndSlab(torch.zeros(2, J), 1.0, 0.0),
    ],
    ids=["normal", "independent", "matrix"],
)
def test_other_divergences_are_unknown(q):
    event = torch.distributions.Independent(q, len(q.batch_shape))
    with pytest.raises(NotImplementedError):
        kl_divergence(event, SpikeAndSlabMixture(products(U)))


def test_a_component_that_is_not_selected_adds_nothing():
    q, p = products(B), products(U)
    log_selection = torch.full((B, U), -torch.inf)
    log_selection[:, 2] = 0.0
    chosen = kl_divergence(q.to_event(1), SpikeAndSlabMixture(p, log_selection))
    assert_close(chosen, pairwise(q, p)[:, 2] + math.log(U))
