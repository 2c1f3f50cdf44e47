"""Discrete sites that cannot be summed out by points, draws without gradients, memory of first calls."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch.nn.functional import dropout, one_hot, pad

from pyro_fmvae.distributions import NaturalDirichlet, NaturalNormal
from pyro_fmvae.infer import AutoConjugate, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo import trial_runs

K = 2


def data(size=30):
    return torch.linspace(-3.0, 3.0, size)


def mixture(location, size=30):
    """A mixture of Normals whose locations at points are ``location(z, locs, x)``."""
    x = data(size)

    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(location(z, locs, x), 1.0), obs=x)

    return model, x


def by_hand(*args):
    """A guide that knows nothing of the model."""
    pyro.sample("weights", NaturalDirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        pyro.sample("locs", NaturalNormal(torch.tensor([[0.5, -0.5], [1.0, -0.7]])))


def refusal(model, guide, *args):
    with pytest.raises(ValueError, match=r"^site") as error:
        TraceConjugate_ELBO().loss(model, guide, *args)
    assert "\n" not in str(error.value)
    return str(error.value)


ACROSS = {
    "sum": lambda z, locs, x: locs[z] + z.sum(),
    "mean": lambda z, locs, x: locs[z] + z.double().mean(),
    "a_little": lambda z, locs, x: locs[z] + 1e-4 * z.sum(),
    "mean_alone": lambda z, locs, x: locs[0] * z.double().mean() + 0 * x,
    "greatest": lambda z, locs, x: locs[z] + z.max(),
    "least": lambda z, locs, x: locs[z] + z.min(),
    "any": lambda z, locs, x: locs[z] + (z == 1).any().double(),
    "roll": lambda z, locs, x: locs[z.roll(1, -1)],
    "flip": lambda z, locs, x: locs[z.flip(-1)],
    "sort": lambda z, locs, x: locs[z.sort(-1)[0]],
    "cumulative_sum": lambda z, locs, x: locs[z] + z.cumsum(-1),
    "neighbour": lambda z, locs, x: locs[z] + pad(z[..., :-1], (1, 0)),
    "groups": lambda z, locs, x: locs[z[torch.arange(len(x)) * 0]],
    "counts": lambda z, locs, x: locs[z] + one_hot(z, K).sum(0)[..., 0],
}


@pytest.mark.parametrize("size", [2, 3, 30])
@pytest.mark.parametrize("name", ACROSS)
def test_values_of_other_points_are_refused(name, size):
    model, x = mixture(ACROSS[name], size)
    assert "'x' depends on its values at several points together" in refusal(model, AutoConjugate(model), x)
    assert "site 'z'" in refusal(model, by_hand, x)


@pytest.mark.parametrize("lag", [4, 7, 12, 24, 30])
def test_values_of_points_far_away_are_refused(lag):
    model, x = mixture(lambda z, locs, x: locs[z.roll(lag, -1)], 50)
    assert "site 'z'" in refusal(model, AutoConjugate(model), x)


LOST = {
    "'sum'": lambda z, locs, x: locs[z] + (z.sum() > 40).double(),
    "'getitem'": lambda z, locs, x: locs[z] + z[..., 20:].sum(),
}


@pytest.mark.parametrize("is_argument", [True, False])
@pytest.mark.parametrize("name", LOST)
def test_functions_that_lose_values_are_refused(name, is_argument):
    """Few points do not reach a threshold, and programs of many points without arguments are not tried."""
    model, x = mixture(LOST[name], 5000)
    program, args = (model, (x,)) if is_argument else (lambda: model(x), ())
    found = refusal(program, AutoConjugate(program), *args)
    assert found.startswith(f"site 'z': the model computes across its values (by {name})")


def test_a_shift_in_float32_is_refused():
    model, x = mixture(lambda z, locs, x: locs[z] + 1e-4 * z.float().mean())
    assert "site 'z'" in refusal(model, AutoConjugate(model), x.float())


def changepoint(before):
    y = torch.tensor([0.3, -0.2, 0.1, 2.8, 3.3, 3.1])

    def model(y):
        m = pyro.sample("m", dist.Normal(torch.zeros(2), 3.0).to_event(1))
        t = pyro.sample("t", dist.Categorical(torch.ones(len(y))))
        with pyro.plate("time", len(y)):
            pyro.sample("y", dist.Normal(torch.where(before(t, len(y)), m[0], m[1]), 1.0), obs=y)

    return model, y


def test_a_changepoint_is_compared_with_time_in_the_plate():
    model, y = changepoint(lambda t, size: torch.arange(size) < t)
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    svi = SVI(model, guide, NaturalGradient(1.0), elbo)
    for _ in range(20):
        svi.step(y)
    assert elbo.responsibilities(model, guide, y)["t"].argmax() == 3


def test_a_changepoint_in_a_dimension_of_its_own_is_refused():
    model, y = changepoint(lambda t, size: torch.arange(size) < t[..., None])
    found = refusal(model, AutoConjugate(model), y)
    assert found.startswith("site 't'") and "'y' has the batch shape (6, 1, 6)" in found
    assert "torch.arange(size) < t" in found


def test_neighbours_that_leave_no_points_are_refused_by_site():
    def model(x):
        b = pyro.sample("b", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(x) + 1):
            z = pyro.sample("z", dist.Bernoulli(0.5))
        with pyro.plate("differences", len(x)):
            pyro.sample("x", dist.Normal(b * (z[..., 1:] - z[..., :-1]), 1.0), obs=x)

    assert "site 'z'" in refusal(model, AutoConjugate(model), data())


def test_data_less_what_a_discrete_site_picks_are_refused_with_what_to_write():
    def model(x):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.sample("x", dist.Normal(0.0, 1.0), obs=x - locs[z.long()])

    with pytest.raises(ValueError, match=r"^site 'x': .* as in dist.Normal\(locs\[z\], scale\)"):
        AutoConjugate(model)(data())


def test_the_number_of_values_is_not_that_of_points():
    model, x = mixture(lambda z, locs, x: locs[z] + len(z))
    assert "site 'z'" in refusal(model, AutoConjugate(model), x)


def test_a_function_that_fails_on_enumerated_values_is_refused_by_site():
    model, x = mixture(lambda z, locs, x: locs[z] + z.bincount(minlength=K)[0])
    assert "the model fails there (bincount" in refusal(model, AutoConjugate(model), x)
    assert "site 'z'" in refusal(model, by_hand, x)


ASKS = {
    "'int'": lambda z, locs, x: locs[z] + int(z[0]),
    "'item'": lambda z, locs, x: locs[z] + z.sum().item(),
    "'tolist'": lambda z, locs, x: locs[z.tolist()],
    "'numpy'": lambda z, locs, x: locs[z] + float(z.numpy().sum()),
    "a truth value": lambda z, locs, x: locs[z] + (1.0 if (z == 1).sum() > 20 else 0.0),
}


@pytest.mark.parametrize("name", ASKS)
def test_values_may_not_be_asked_for(name):
    model, x = mixture(ASKS[name])
    assert f"the model asks for its value (for {name})" in refusal(model, AutoConjugate(model), x)
    assert "site 'z'" in refusal(model, by_hand, x)


def test_the_site_that_is_used_across_points_is_named():
    def model(x):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Bernoulli(0.5))
            b = pyro.sample("b", dist.Bernoulli(0.5))
            pyro.sample("x", dist.Normal(locs[a.long()] + b.sum(), 1.0), obs=x)

    assert "site 'b'" in refusal(model, AutoConjugate(model), data())


@pytest.mark.parametrize("size", [5, 50])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_plate_that_is_made_twice_is_refused(size, is_given):
    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        with pyro.plate("n", size):
            z = pyro.sample("z", dist.Categorical(weights))
        with pyro.plate("n2", len(x)):
            pyro.sample("x", dist.Normal(locs[z], 1.0), obs=x)

    found = refusal(model, by_hand if is_given else AutoConjugate(model), data(50))
    assert found.startswith(
        "site 'x': it depends on the discrete site 'z' in plate 'n', but lies in plate 'n2'"
    )
    assert "make the plate once" in found


def test_a_site_outside_of_a_plate_is_refused():
    def model(x):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("x", dist.Normal(locs[z.long()], 1.0).to_event(1), obs=x)

    found = refusal(model, AutoConjugate(model), data(3))
    assert "'z'" in found and "'x'" in found


def test_a_plate_that_is_entered_twice_is_one_plate():
    def model(x, twice):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        plate = pyro.plate("data", len(x))
        with plate:
            z = pyro.sample("z", dist.Categorical(weights))
            if not twice:
                pyro.sample("x", dist.Normal(locs[z], 1.0), obs=x)
        if twice:
            with plate:
                pyro.sample("x", dist.Normal(locs[z], 1.0), obs=x)

    losses = [TraceConjugate_ELBO().loss(model, by_hand, data(), twice) for twice in (False, True)]
    assert losses[0] == losses[1]


GOOD = {
    "where": lambda z, locs, x: torch.where(z == 1, locs[0], locs[1]),
    "one_hot": lambda z, locs, x: one_hot(z, K).double() @ locs,
    "of_data": lambda z, locs, x: locs[z] + float(x.max()) + x.roll(1),
    "dropout": lambda z, locs, x: locs[z] + dropout(x, 0.5),
    "own_noise": lambda z, locs, x: locs[z] + 0.1 * torch.randn(z.shape),
}


@pytest.mark.parametrize("size", [1, 2, 5000])
@pytest.mark.parametrize("name", GOOD)
def test_values_of_single_points_are_not_refused(name, size):
    model, x = mixture(GOOD[name], size)
    assert TraceConjugate_ELBO().loss(model, AutoConjugate(model), x) > 0


def test_factors_of_single_points_are_not_refused():
    """They have an empty value."""

    def model(x):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.factor("x", -((x - locs[z.long()]) ** 2))

    assert TraceConjugate_ELBO().loss(model, AutoConjugate(model), data(3)) > 0


STEPS = {
    "gt": lambda z: (z > 0).double(),
    "round": lambda z: z.round(),
    "floor": lambda z: torch.floor(z),
    "sign": lambda z: z.sign(),
    "heaviside": lambda z: torch.heaviside(z, torch.zeros_like(z)),
    "floordiv": lambda z: z // 1,
    "detach": lambda z: z.detach(),
    "data": lambda z: z.data,
    "bucketize": lambda z: torch.bucketize(z, torch.zeros(1)).double(),
}


def thresholded(step):
    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(w * x, 1.0))
            pyro.sample("y", dist.Normal(step(z).tanh(), 1.0), obs=x)

    return model


@pytest.mark.parametrize("name", STEPS)
def test_a_draw_behind_a_step_is_told(name):
    model = thresholded(STEPS[name])
    guide = AutoConjugate(model)
    with pytest.warns(
        UserWarning, match=f"site 'z': '{name}' passes no gradient on, so 'y' does not move it"
    ):
        guide(data())
    why = TraceConjugate_ELBO().plan(model, guide, data())["z"].why
    assert why.endswith(f"'{name}' passes no gradient on, so 'y' does not move it")


def test_a_branch_on_a_draw_is_told():
    def model(x):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(1.0 if z > 0 else -1.0, 1.0), obs=x)

    with pytest.warns(UserWarning, match="site 'z': a truth value passes no gradient on"):
        AutoConjugate(model)(data())


SLOPES = {
    "smooth": torch.sigmoid,
    "leaky": lambda z: torch.where(z > 0, z, 0.1 * z),
    "straight_through": lambda z: z + (z.round() - z).detach(),
    "clamp": lambda z: z.clamp(min=50.0),
    "argmax_beside": lambda z: z.exp() + z.argmax(-1),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_draw_with_a_gradient_is_not_warned_of(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoConjugate(thresholded(SLOPES[name]))(data())


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most numbers of a result."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result.is_meta:
            self.numbers = max(self.numbers, result.untyped_storage().nbytes() // result.element_size())
        return result


D, MANY = 16, 3000


def full_covariances(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.MultivariateNormal(torch.zeros(D), 10 * torch.eye(D)))
        precisions = pyro.sample("precisions", dist.Wishart(torch.tensor(D + 2.0), torch.eye(D)))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("x", dist.MultivariateNormal(locs[z], precision_matrix=precisions[z]), obs=x)


def of_known_size(x):
    """The data are no argument."""
    full_covariances(torch.zeros(MANY, D))


def topics(words):
    with pyro.plate("topics", 3):
        words_of = pyro.sample("words_of", dist.Dirichlet(torch.ones(1000)))
    with pyro.plate("documents", words.shape[1]):
        theta = pyro.sample("theta", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("words", words.shape[0]):
            z = pyro.sample("z", dist.Categorical(theta))
            pyro.sample("w", dist.Categorical(words_of[z]), obs=words)


@pytest.mark.parametrize("model", [full_covariances, of_known_size])
def test_the_first_call_makes_no_matrix_for_each_point(model):
    x = torch.zeros(MANY, D)
    with Largest() as largest:
        AutoConjugate(model)(x)
    assert largest.numbers <= 2 * MANY * D


def test_the_first_call_makes_no_topic_for_each_word():
    words = torch.arange(40 * 30).view(40, 30) % 1000
    with Largest() as largest:
        AutoConjugate(topics)(words)
    assert largest.numbers < 40 * 30 * 100


def test_a_trial_that_is_cut_is_of_the_program_that_runs():
    """Data of an argument that is not cut, beside one that is: all points are tried."""
    other = data(50)

    def model(x):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            shift = z.sum() if len(x) == 50 else 0.0
            pyro.sample("x", dist.Normal(locs[z.long()] + other + shift, 1.0), obs=x)

    assert "site 'z'" in refusal(model, AutoConjugate(model), data(50))


def test_trials_leave_random_numbers_alone():
    model, x = mixture(GOOD["where"])
    guide = AutoConjugate(model)
    guide(x)
    torch.manual_seed(1)
    svi = SVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    svi.step(x)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == after


def test_a_first_step_tries_a_model_once(monkeypatch):
    """Once for the guide and the bound together; again for arguments of other shapes, not of the same."""
    tried = []
    monkeypatch.setattr(trial_runs, "_check", lambda trial, values: tried.append(trial))

    def model(x):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(locs[z], 1.0), obs=x)

    counts = []
    for size in (8, 8, 9):
        elbo, guide = TraceConjugate_ELBO(), AutoConjugate(model)
        elbo.differentiable_loss(model, guide, torch.randn(size))
        counts.append(len(tried))
    assert counts == [1, 1, 2]
