import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, TraceEnum_ELBO, config_enumerate, infer_discrete

from pyro_fmvae.distributions import Assignment, Component, Label, NormalGamma

I, K, B, D = 2, 3, 4, 5  # noqa: E741


@pytest.fixture
def weights():
    return dist.Dirichlet(torch.ones(I, 1, K)).sample()


@pytest.fixture
def loc_precision():
    return NormalGamma(torch.zeros(I, K, D), 1.0, 2.0, 2.0).sample()


def normal_log_prob(loc_precision, k, z):
    """log N(z; μ_k, 1/α_k) of one point under one component."""
    loc, precision = loc_precision[k]
    return torch.distributions.Normal(loc, precision**-0.5).log_prob(z).sum()


def brute_force(loc_precision, assignment, z):
    """The same for each factor and point by loops: assignment [I, B], z [I, B, D]."""
    rows = [
        [normal_log_prob(loc_precision[i], assignment[i, n], z[i, n]) for n in range(z.shape[1])]
        for i in range(z.shape[0])
    ]
    return torch.stack([torch.stack(row) for row in rows])


def test_assignment_is_a_categorical(weights):
    fn = Assignment(weights).expand(torch.Size((I, B)))
    reference = dist.Categorical(weights).expand(torch.Size((I, B)))
    assert (fn.batch_shape, fn.event_shape, fn.num_components) == ((I, B), (), K)
    value = fn.sample()
    assert value.dtype == torch.int64 and value.shape == (I, B)
    torch.testing.assert_close(fn.log_prob(value), weights.log().squeeze(1).gather(-1, value))
    torch.testing.assert_close(fn.probs, weights.expand(I, B, K))
    for expand in (True, False):
        support = fn.enumerate_support(expand=expand)
        assert torch.equal(support, reference.enumerate_support(expand=expand))
        torch.testing.assert_close(fn.log_prob(support), reference.log_prob(support))
    assert fn.support.check(torch.tensor([-1, 0, K - 1, K])).tolist() == [False, True, True, False]


def test_assignment_frequencies(weights, assert_mean, device):
    fn = Assignment(weights.to(device)).expand(torch.Size((I, 2)))
    draws = fn.sample((20_000,))
    assert_mean(torch.nn.functional.one_hot(draws, K).double(), weights.to(device).expand(I, 2, K))


def test_assignment_with_particles(weights):
    fn = Assignment(torch.stack([weights, weights.flip(-1)])).expand(torch.Size((2, I, B)))
    torch.testing.assert_close(
        fn.log_prob(torch.zeros(2, I, B).long())[1], weights[..., -1].log().expand(I, B)
    )


@pytest.mark.parametrize("bad", [torch.tensor([torch.nan, 0.5]), torch.tensor([1.5, -0.5])])
def test_assignment_validates_when_it_looks(bad):
    fn = Assignment(bad)  # a placeholder may stand here
    with pytest.raises(ValueError, match="probs"):
        fn.sample()
    with pytest.raises(ValueError, match="weights"):
        Assignment(torch.tensor(1.0))


def test_label():
    fn = Label(torch.tensor([0, 1, 2]))
    inf = torch.inf
    assert fn.log_prob(torch.tensor([0, 0, -1])).tolist() == [0.0, -inf, 0.0]
    assert fn.log_prob(torch.tensor([[2], [-1]])).tolist() == [[-inf, -inf, 0.0], [0.0, 0.0, 0.0]]
    assert fn.sample((2,)).tolist() == [[0, 1, 2]] * 2
    for bad in (-2, 0.5):
        with pytest.raises(ValueError, match="support"):
            fn.log_prob(torch.tensor([bad] * 3))


def test_label_of_enumerated_assignments():
    enumerated = torch.arange(K).view(K, 1, 1)
    fn = Label(enumerated).expand(torch.Size((K, I, B)))
    labels = torch.tensor([[0, 1, 2, -1], [-1, -1, 0, 0]])
    table = fn.log_prob(labels)
    assert table.shape == (K, I, B)
    for k in range(K):
        assert torch.equal(table[k] == 0, (labels == k) | (labels == -1))
    assert fn.log_prob(torch.tensor(-1)).shape == (K, I, B)


def test_component(loc_precision):
    assignment = torch.randint(K, (I, B))
    fn = Component(loc_precision, assignment)
    assert (fn.batch_shape, fn.event_shape) == ((I, B), (D,))
    z = fn.sample()
    assert z.shape == (I, B, D)
    torch.testing.assert_close(fn.log_prob(z), brute_force(loc_precision, assignment, z))
    torch.testing.assert_close(
        fn.log_prob(z[0, 0]), brute_force(loc_precision, assignment, z[0, 0].expand(I, B, D))
    )


def test_enumerated_component(loc_precision):
    z = torch.randn(I, B, D)
    fn = Component(loc_precision, torch.arange(K).view(K, 1, 1)).expand(torch.Size((K, I, B)))
    table = fn.log_prob(z)
    assert table.shape == (K, I, B)
    for k in range(K):
        expected = brute_force(loc_precision, torch.full((I, B), k), z)
        torch.testing.assert_close(table[k], expected)
    assert fn.sample((6,)).shape == (6, K, I, B, D)
    assert fn.expand(torch.Size((2, K, I, B))).log_prob(z).shape == (2, K, I, B)


def test_component_with_particles(loc_precision):
    particles = torch.stack([loc_precision, loc_precision.flip(1)])
    assignment, z = torch.randint(K, (2, I, B)), torch.randn(2, I, B, D)
    log_prob = Component(particles, assignment).log_prob(z)
    for p in range(2):
        torch.testing.assert_close(log_prob[p], brute_force(particles[p], assignment[p], z[p]))
    shared = Component(loc_precision, assignment).log_prob(z)
    torch.testing.assert_close(shared[1], brute_force(loc_precision, assignment[1], z[1]))
    enumerated = Component(particles, torch.arange(K).view(K, 1, 1, 1))
    assert enumerated.batch_shape == (K, 2, I, 1)
    torch.testing.assert_close(
        enumerated.log_prob(z)[2, 1], brute_force(particles[1], torch.full((I, B), 2), z[1])
    )


def test_component_without_factors(loc_precision):
    assignment = torch.tensor([0, 2, 1])
    z = torch.randn(3, D)
    expected = [normal_log_prob(loc_precision[0], k, z[n]) for n, k in enumerate(assignment)]
    torch.testing.assert_close(Component(loc_precision[0], assignment).log_prob(z), torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_component_moments(loc_precision, dtype, assert_mean, device):
    assignment = torch.tensor([[0, 1], [2, 2]], device=device)
    loc_precision = loc_precision.to(device, dtype)
    draws = Component(loc_precision, assignment).sample((20_000,))
    assert draws.dtype == dtype
    loc, precision = loc_precision[torch.arange(I, device=device)[:, None], assignment].unbind(-2)
    assert_mean(draws, loc)
    assert_mean((draws - loc) ** 2 * precision, torch.ones_like(loc))


def test_component_gradient_of_draws(loc_precision):
    """d z / d μ = 1 and d z / d α = -(z - μ)/(2α), for the component that was chosen and no other."""
    loc_precision = loc_precision[0].requires_grad_()
    z = Component(loc_precision, torch.tensor([1])).rsample()
    z.sum().backward()
    loc, precision = loc_precision[1].detach()
    torch.testing.assert_close(loc_precision.grad[1, 0], torch.ones(D))
    torch.testing.assert_close(loc_precision.grad[1, 1], -(z[0].detach() - loc) / (2 * precision))
    assert loc_precision.grad[[0, 2]].abs().max() == 0


def test_component_gradient_near_the_prior_is_finite_in_float32():
    loc_precision = torch.tensor([[[1e15], [1e-30]]], dtype=torch.float32, requires_grad=True)
    log_prob = Component(loc_precision, torch.tensor([0])).log_prob(torch.zeros(1, 1, dtype=torch.float32))
    log_prob.sum().backward()
    assert loc_precision.grad.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "assignment", "message"),
    [
        ((2, 3), (), "loc_precision: expected shape"),
        ((3, 1, 5), (4,), "loc_precision: expected shape"),
        ((2, 3, 2, 5), (3, 4), r"assignment: expected a shape .* fits \[2\], .* got \[3, 4\]"),
    ],
)
def test_component_shape_errors(shape, assignment, message):
    with pytest.raises(ValueError, match=message):
        Component(torch.ones(shape), torch.zeros(assignment).long())


def test_component_without_the_factors_in_its_assignment(loc_precision):
    fn = Component(loc_precision, torch.zeros(B).long())
    assert fn.batch_shape == (I, B)
    assert fn.sample().shape == (I, B, D)
    with pytest.raises(ValueError):
        fn.log_prob(torch.randn(I, B, D + 1))


def all_three(weights, loc_precision, assignment):
    return Assignment(weights), Label(assignment), Component(loc_precision, assignment)


def test_parents_keep_their_identity(weights, loc_precision):
    assignment = torch.randint(K, (I, B))
    tensors = {"weights": weights, "loc_precision": loc_precision, "assignment": assignment}
    for fn in all_three(weights, loc_precision, assignment):
        wide = fn.expand(torch.Size((7, I, B))).expand(torch.Size((6, 7, I, B)))
        assert wide.batch_shape == (6, 7, I, B) and type(wide) is type(fn)
        for name in fn.parents:
            assert getattr(fn, name) is getattr(wide, name) is tensors[name]


def test_independent(weights, loc_precision):
    for fn in all_three(weights, loc_precision, torch.randint(K, (I, B))):
        fn = fn.expand(torch.Size((I, B)))
        value = fn.sample()
        summed = fn.to_event(1)
        assert (summed.batch_shape, summed.event_shape) == ((I,), (B, *fn.event_shape))
        torch.testing.assert_close(summed.log_prob(value), fn.log_prob(value).sum(-1))
        assert fn.mask(False).log_prob(value).abs().max() == 0


@pytest.mark.parametrize("validate", [True, False])
def test_expand_keeps_validation(weights, validate):
    assert Assignment(weights, validate_args=validate).expand(torch.Size((I, B)))._validate_args is validate


def program(weights, loc_precision, z=None, labels=None):
    with pyro.plate("data", B, dim=-1), pyro.plate("factors", I, dim=-2):
        r = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
        pyro.sample("label", Label(r), obs=labels)
        return pyro.sample("z", Component(loc_precision, r), obs=z), r


def logits(weights, loc_precision, z):
    """Log joint density [I, B, K]."""
    columns = [brute_force(loc_precision, torch.full((I, B), k), z) for k in range(K)]
    return torch.stack(columns, -1) + weights.log()


def test_in_plates(weights, loc_precision):
    trace = poutine.trace(program).get_trace(weights, loc_precision)
    trace.compute_log_prob()
    nodes = trace.nodes
    r = nodes["assignment"]["value"]
    assert nodes["assignment"]["fn"].weights is weights
    assert nodes["label"]["fn"].assignment is nodes["z"]["fn"].assignment is r
    assert nodes["z"]["fn"].loc_precision is loc_precision
    assert torch.equal(nodes["label"]["value"], r) and nodes["label"]["log_prob_sum"] == 0
    expected = logits(weights, loc_precision, nodes["z"]["value"]).gather(-1, r.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(nodes["assignment"]["log_prob"] + nodes["z"]["log_prob"], expected)
    drawn = Predictive(program, num_samples=3)(weights, loc_precision)
    assert drawn["z"].shape == (3, I, B, D)


@pytest.mark.parametrize("labels", [None, torch.tensor([[0, -1, 2, -1], [-1, 1, -1, -1]])])
def test_enumerated(weights, loc_precision, labels):
    z = torch.randn(I, B, D)
    observed = torch.full((I, B), -1) if labels is None else labels
    loss = TraceEnum_ELBO(max_plate_nesting=2).loss(
        config_enumerate(program), lambda *args: None, weights, loc_precision, z, observed
    )
    table = logits(weights, loc_precision, z)
    known = torch.nn.functional.one_hot(observed.clamp(min=0), K).bool() | (observed < 0).unsqueeze(-1)
    expected = -table.masked_fill(~known, -torch.inf).logsumexp(-1).sum()
    torch.testing.assert_close(torch.tensor(loss), expected)


def test_infer_discrete(weights, loc_precision):
    z = torch.randn(I, B, D)
    labels = torch.tensor([[0, -1, 2, -1], [-1, 1, -1, -1]])
    decode = infer_discrete(program, first_available_dim=-3, temperature=0)
    _, r = decode(weights, loc_precision, z, labels)
    expected = torch.where(labels < 0, logits(weights, loc_precision, z).argmax(-1), labels)
    assert torch.equal(r, expected)
