"""The losses of single points, against brute force and against what they add up to."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae import AutoConjugate, Role, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import loss_per_point
from tests.infer.programs import Adjust, BruteForce, Toy, draw_z, seeded
from tests.models.small import binary_data, drawn_z, factor_losses, small_model

EXACT = {"rtol": 1e-11, "atol": 1e-11}
LOCAL = (Role.RECONSTRUCTION, Role.KL_Z, Role.KL_R)


def points(elbo, program, *args, **kwargs):
    """Losses per point, and what they are to add up to: both for a seeded evaluation."""
    per_point = seeded(loss_per_point, elbo, program.model, program.guide, *args, **kwargs)
    kwargs.pop("plate", None)
    with torch.no_grad():
        total = seeded(elbo.loss_per_role, program.model, program.guide, *args, **kwargs)
    return per_point, total


def check_sums(per_point, total, share, roles=LOCAL):
    for role in roles:
        assert_close(per_point[role].sum() / share, total[role], **EXACT)
        assert per_point[role].abs().max() > 1e-3


def test_every_point_equals_brute_force():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data(6)
    found, total = points(elbo, toy, x)
    with torch.no_grad():
        z = draw_z(elbo, toy.model, toy.guide, x)
        brute = BruteForce(toy, x, z)
        logits = toy.decoder(z.transpose(0, 1).flatten(1))
        bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    assert set(found) == set(Role)
    assert_close(found[Role.RECONSTRUCTION], bce, **EXACT)
    assert_close(found[Role.KL_Z], brute.kl_z_of_points.sum(0), **EXACT)
    assert_close(found[Role.KL_R], brute.kl_r_of_points.sum(0), **EXACT)
    check_sums(found, total, 6 / 20)
    assert total[Role.KL_GLOBAL] > 0 and (found[Role.KL_GLOBAL] == 0).all()  # no point's own
    assert (found[Role.LABEL] == 0).all()


@pytest.mark.parametrize("labels", [False, True])
def test_groups_of_factors_and_labels(labels):
    """K = 2, 3, 2, of which one factor of the first kind is labelled: three groups of sites."""
    model, x = small_model((2, 3, 2), labelled=(0,)), binary_data(7)
    arguments = (torch.tensor([[0], [1], [-1], [1], [-1], [0], [-1]]),) if labels else ()
    found, total = points(TraceConjugate_ELBO(), model, x, *arguments)
    with torch.no_grad():
        kl_z, kl_r = zip(*(factor_losses(model, factor, x, *arguments) for factor in range(3)), strict=True)
        logits = model.decoder(drawn_z(model, x, *arguments)).squeeze(1)
        bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum((1, 2))
    assert_close(found[Role.KL_Z], sum(kl_z), **EXACT)
    assert_close(found[Role.KL_R], sum(kl_r), **EXACT)
    assert_close(found[Role.RECONSTRUCTION], bce, **EXACT)
    check_sums(found, total, 7 / 20)


def test_plain_vae():
    vae, x = small_model((1, 1), num_data=30).pretraining(), binary_data(6)
    found, total = points(TraceConjugate_ELBO(), vae, x)
    with torch.no_grad():
        loc, scale = vae.encoder(x)
    assert_close(found[Role.KL_Z], 0.5 * (loc**2 + scale**2 - 1 - 2 * scale.log()).sum(-1), **EXACT)
    assert (found[Role.KL_R] == 0).all()
    check_sums(found, total, 6 / 30, LOCAL[:2])


def test_divergences_of_a_point_do_not_depend_on_the_others():
    model, x = small_model((2, 3)), binary_data(5)
    together = loss_per_point(TraceConjugate_ELBO(), model.model, model.guide, x)
    for row, point in enumerate(x):
        alone = loss_per_point(TraceConjugate_ELBO(), model.model, model.guide, point[None])
        for role in (Role.KL_Z, Role.KL_R):
            assert_close(alone[role], together[role][[row]], **EXACT)


@pytest.mark.parametrize("options", [{}, {"vectorize_particles": True, "max_plate_nesting": 2}], ids=str)
def test_particles_are_averaged(options):
    toy = Toy()
    found, total = points(TraceConjugate_ELBO(num_particles=3, **options), toy, toy.data(6))
    assert all(found[role].shape == (6,) for role in LOCAL)
    check_sums(found, total, 6 / 20)


@pytest.mark.parametrize(
    "change",
    [
        {"names": ("x",), "mask": torch.tensor([True, False, True, True, False, True])},
        {"names": ("z",), "scale": 0.3},
        {"names": ("assignment",), "scale": torch.linspace(0.5, 2, 6, dtype=torch.float64)},
        {"names": ("x", "z", "assignment", "weights", "loc_precision"), "scale": 2.0},
    ],
    ids=lambda change: ", ".join(change["names"]),
)
def test_scales_and_masks_of_sites_count(change):
    toy = Toy()
    x = toy.data(6)
    with Adjust(**change):
        found, total = points(TraceConjugate_ELBO(), toy, x)
    check_sums(found, total, 6 / 20)
    if "mask" in change:
        assert ((found[Role.RECONSTRUCTION] == 0) == ~change["mask"]).all()


def test_weights_of_the_loss_count():
    """The classification term, and its Δ, belong to points too."""
    toy = Toy(standard=True)
    x, labels = toy.data(6), torch.tensor([[0, 2, -1, 1, -1, -1], [-1, 1, -1, 2, -1, 0]])
    found, total = points(TraceConjugate_ELBO(label_weight=5.0, kl_weight=0.3), toy, x, labels)
    check_sums(found, total, 6 / 20, (*LOCAL, Role.LABEL))
    assert ((found[Role.LABEL] == 0) == (labels < 0).all(0)).all()


def test_minibatches_that_the_plate_chooses():
    toy = Toy()
    toy.batch_size = 4
    found, total = points(TraceConjugate_ELBO(), toy, toy.data(20))
    assert found[Role.KL_Z].shape == (4,)
    check_sums(found, total, 4 / 20)


def test_assignments_of_the_guide():
    toy = Toy()
    x = toy.data(6)
    probabilities = torch.rand(2, 6, 3).softmax(-1)
    toy.assigned = lambda: dist.Categorical(probabilities)
    found, total = points(TraceConjugate_ELBO(), toy, x)
    gamma = BruteForce(toy, x, torch.zeros(2, 6, 2), gamma=probabilities)
    assert_close(found[Role.KL_R], gamma.kl_r_of_points.sum(0), **EXACT)
    check_sums(found, total, 6 / 20)


class Rows:
    """A user's program: rows lie in a plate of another name, left of one for columns."""

    def __init__(self):
        self.x = torch.tensor([[0.3, -1.2, 0.8, 2.0], [0.1, 0.4, -0.7, 1.1], [3.0, -2.0, 1.0, 0.0]])
        self.q = torch.tensor([[0.1], [0.4], [-0.6]])

    def plates(self):
        subsample = torch.arange(3)
        return pyro.plate("rows", 9, subsample=subsample, dim=-2), pyro.plate("columns", 4, dim=-1)

    def model(self):
        mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
        rows, columns = self.plates()
        with rows:
            local = pyro.sample("local", dist.Normal(mean, 1.0))
            pyro.factor("penalty", -(local**2))
            with columns:
                pyro.sample("x", dist.Normal(local, 0.5), obs=self.x)

    def guide(self):
        pyro.sample("mean", dist.Normal(0.5, 0.7))
        with self.plates()[0]:
            pyro.sample("extra", dist.Normal(self.q, 1.0), infer={"is_auxiliary": True})
            pyro.sample("local", dist.StudentT(5.0, self.q, 0.5))  # no closed form: a sampled log-ratio


class Sequence(Rows):
    """The same sites in a plate that is a loop."""

    def model(self):
        for i in pyro.plate("rows", 3):
            local = pyro.sample(f"local_{i}", dist.Normal(0.3, 1.0))
            with pyro.plate(f"columns_{i}", 4, dim=-1):
                pyro.sample(f"x_{i}", dist.Normal(local, 0.5), obs=self.x[i])

    def guide(self):
        for i in pyro.plate("rows", 3):
            pyro.sample(f"local_{i}", dist.Normal(self.q[i, 0], 0.5))


@pytest.mark.parametrize(
    ("program", "share", "roles"),
    [(Rows, 3 / 9, (Role.RECONSTRUCTION, Role.FACTOR)), (Sequence, 1.0, (Role.RECONSTRUCTION,))],
)
def test_a_users_own_program(program, share, roles):
    program = program()
    found, total = points(TraceConjugate_ELBO(), program, plate="rows")
    check_sums(found, total, share, roles)
    elbo = TraceConjugate_ELBO()
    with torch.no_grad():
        _, trace = seeded(elbo.trace, program.model, program.guide)
        q = [site for name, site in trace.nodes.items() if name.startswith("local")]
        z = torch.stack([site["value"].flatten() for site in q]).flatten()
        log_likelihood = dist.Normal(z[:, None], 0.5).log_prob(program.x).sum(-1)
    assert_close(found[Role.RECONSTRUCTION], -log_likelihood, **EXACT)
    if isinstance(program, Sequence):
        kl = torch.distributions.kl_divergence(dist.Normal(program.q[:, 0], 0.5), dist.Normal(0.3, 1.0))
        assert_close(found[Role.KL_Z], kl, **EXACT)
        return
    nodes = trace.nodes
    log_q = sum(nodes[name]["fn"].log_prob(nodes[name]["value"]) for name in ("local", "extra"))
    log_p = dist.Normal(nodes["mean"]["value"], 1.0).log_prob(nodes["local"]["value"])
    assert_close(found[Role.KL_Z], (log_q - log_p).flatten(), **EXACT)
    assert_close(found[Role.FACTOR], z**2, **EXACT)


def test_networks_are_not_differentiated():
    toy, modes = Toy(), []
    toy.decoder.register_forward_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    x = toy.data(6)
    found = loss_per_point(TraceConjugate_ELBO(), toy.model, toy.guide, x)
    with torch.no_grad():
        again = loss_per_point(TraceConjugate_ELBO(), toy.model, toy.guide, x)
    assert modes == [False, False]
    assert_close(again[Role.KL_Z], found[Role.KL_Z], rtol=0, atol=0)
    assert not any(values.requires_grad for values in (*found.values(), *again.values()))
    assert all(parameter.grad is None for parameter in toy.parameters())


def test_no_such_plate():
    toy = Toy()
    with pytest.raises(ValueError, match=r"^plate: expected the name .* holds a sample site, got 'rows'"):
        loss_per_point(TraceConjugate_ELBO(), toy.model, toy.guide, toy.data(), plate="rows")


def plain_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 3.0))
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", 20, subsample=x):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()), obs=x)


def plain_sequences(x):
    """Each row with a neighbour is a sequence of two."""
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    with pyro.plate("data", 20, subsample=x):
        state = 0
        for time in pyro.markov(range(2)):
            state = pyro.sample(f"state_{time}", dist.Categorical(rows[state]))
            pyro.sample(f"x_{time}", dist.Normal(locs[state], 1.0), obs=x + time)


def plain_regression(x):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", 20, subsample=x):
        pyro.sample("x", dist.Normal(slope, precision.rsqrt()), obs=x)


@pytest.mark.parametrize("model", [plain_mixture, plain_sequences, plain_regression])
def test_a_point_of_a_plain_program_has_the_loss_that_it_has_alone(model):
    guide, elbo, x = AutoConjugate(model), TraceConjugate_ELBO(), torch.randn(5)
    guide(x)
    together, total = loss_per_point(elbo, model, guide, x), elbo.loss_per_role(model, guide, x)
    local = [role for role in LOCAL if together[role].any()]
    assert local == ([Role.RECONSTRUCTION] if model is plain_regression else [Role.KL_R])
    check_sums(together, total, 5 / 20, local)
    for row, point in enumerate(x):
        alone = elbo.loss_per_role(model, guide, point[None])
        for role in local:
            assert_close(together[role][row], alone[role] / 20, **EXACT)


def test_latents_of_points_count_in_plain_programs():
    """One is natural, one is drawn beside an assignment whose probabilities are the guide's."""

    def model(x):
        with pyro.plate("data", len(x)):
            factor = pyro.sample("factor", dist.Gamma(2.0, 2.0))
            pyro.sample("y", dist.Normal(0.0, factor.rsqrt()), obs=x)
            a = pyro.sample("a", dist.Categorical(torch.ones(2) / 2))
            z = pyro.sample("z", dist.Normal(torch.tensor([-1.0, 1.0])[a], 1.0))
            pyro.sample("x", dist.Normal(z.tanh(), 1.0), obs=x)

    conjugate = AutoConjugate(model, fallback=None)

    def guide(x):
        conjugate(x)
        with pyro.plate("data", len(x)):
            pyro.sample("a", dist.Categorical(torch.stack([x.sigmoid(), 1 - x.sigmoid()], -1)))
            pyro.sample("z", dist.Normal(x, 0.5))

    elbo, x = TraceConjugate_ELBO(), torch.randn(5)
    seeded(elbo.loss, model, guide, x)
    together = seeded(loss_per_point, elbo, model, guide, x)
    check_sums(together, seeded(elbo.loss_per_role, model, guide, x), 1.0, (*LOCAL, Role.KL_GLOBAL))


def test_points_that_are_summed_out_together_have_no_losses_of_their_own():
    def model(x):
        kind = pyro.sample("kind", dist.Bernoulli(0.5))
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc * kind, 1.0), obs=x)

    guide, x = AutoConjugate(model), torch.randn(5)
    with pytest.raises(ValueError, match="plate: site 'kind' is outside of 'data' and summed"):
        loss_per_point(TraceConjugate_ELBO(), model, guide, x)
    with pytest.raises(ValueError, match=r"kl_weight: expected 1\.0 for a program of Pyro's"):
        loss_per_point(TraceConjugate_ELBO(kl_weight=0.5), model, guide, x)
