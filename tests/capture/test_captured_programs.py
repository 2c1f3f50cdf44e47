"""Programs of all kinds, written as Pyro's users write them, under captured steps."""

from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.nn import PyroModule, PyroParam
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from pyro_fmvae.capture import CapturedSVI, CaptureError
from pyro_fmvae.distributions import BernoulliObservation, GaussianObservation
from pyro_fmvae.infer import AutoConjugate, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.models import VAE
from pyro_fmvae.nn import ConvDecoder, ConvEncoder
from tests.capture.captured import (
    EXACT,
    RATE,
    Methods,
    Plain,
    a_toy,
    adam,
    assert_twins,
    batches_of,
    plainly,
    trained,
)
from tests.infer.programs import Adjust, Toy


def binary(size=6):
    return torch.bernoulli(torch.full((size, 5), 0.5))


def normalised():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.3))


def test_batch_norm_and_dropout_in_a_function():
    """Buffers of modules that only their calls reveal count each batch once."""

    def modes(step, svi, program):
        program.decoder.train(step % 10 < 7)

    assert_twins(lambda: Plain(plainly, normalised()), [(torch.randn(6, 3),)] * 40, EXACT, between=modes)


def test_batch_norm_in_a_module():
    def make():
        toy = Toy()
        toy.decoder = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5))
        return toy

    svi = assert_twins(make, [(binary(),)] * 20)
    assert svi.model.__self__.decoder[1].num_batches_tracked == 20


class Free(nn.Module):
    """Parameters that its functions make in Pyro's store, one with random values, and one without use."""

    def __init__(self):
        super().__init__()

        def model(x):
            shift = pyro.param("shift", lambda: torch.randn(3))
            pyro.param("unused", torch.ones(2))
            scale = pyro.param("scale", torch.ones(3), constraint=dist.constraints.positive)
            with pyro.plate("data", 20, subsample=x, dim=-1):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("x", dist.Normal(shift + z.unsqueeze(-1), scale).to_event(1), obs=x)

        def guide(x):
            loc = pyro.param("loc", torch.zeros(()))
            with pyro.plate("data", 20, subsample=x, dim=-1):
                pyro.sample("z", dist.Normal(loc, 1.0))

        self.model, self.guide = model, guide


def test_parameters_of_the_store_made_on_the_way():
    svi = assert_twins(Free, [(torch.randn(6, 3),)] * 40, EXACT)
    assert len(svi.optim.others.param_groups[0]["params"]) == 4  # unused ones too, as in eager steps


def test_parameters_without_gradient_have_their_place_in_the_optimiser():
    """Or else a checkpoint would not fit an eager step's."""

    def make():
        program = Methods()
        program.decoder.unused = nn.Parameter(torch.ones(2))
        return program

    svi = assert_twins(make, [(torch.randn(6, 3),)] * 3, EXACT)
    assert len(svi.optim.others.param_groups[0]["params"]) == 5


class Lazy(nn.Module):
    def __init__(self, ready=False):
        super().__init__()
        self.toy = Toy()
        self.conjugate = AutoConjugate(self.toy.model)
        if ready:
            self.conjugate.setup(binary())

        def guide(x):
            pyro.module("encoder", self.toy.encoder)
            self.conjugate(x)
            x, data, factors, _ = self.toy.plates(x)
            loc, scale = self.toy.encode(x)
            with data, factors:
                pyro.sample("z", dist.Normal(loc, scale).to_event(1))

        self.model, self.guide = self.toy.model, guide


@pytest.mark.parametrize("ready", [False, True])
def test_autoguide(ready):
    assert_twins(partial(Lazy, ready), [(binary(),)] * 30)


class Decoding(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](2, 3)
        self.scale = PyroParam(torch.ones(3), constraint=dist.constraints.positive)
        self.linear.bias.requires_grad_(False)

    def forward(self, x):
        with pyro.plate("data", 20, subsample=x, dim=-1):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.linear(z), self.scale).to_event(1), obs=x)


class Encoding(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 4)

    def forward(self, x):
        loc, log_scale = self.linear(x).chunk(2, -1)
        with pyro.plate("data", 20, subsample=x, dim=-1):
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def test_pyro_modules():
    def make():
        both = nn.Module()
        both.model, both.guide = Decoding(), Encoding()
        return both

    assert_twins(make, [(torch.randn(6, 3),)] * 40, EXACT)


class Handled(nn.Module):
    """A toy's program inside Pyro's handlers."""

    def __init__(self, handle):
        super().__init__()
        self.toy = Toy()
        self.model, self.guide = handle(self.toy)


HANDLERS = {
    "scale": lambda toy: (poutine.scale(toy.model, scale=0.05), poutine.scale(toy.guide, scale=0.05)),
    "block": lambda toy: (toy.model, poutine.block(toy.guide, hide=["nothing"])),
    "condition": lambda toy: (
        poutine.condition(toy.model, {"weights": torch.full((2, 1, 3), 1 / 3)}),
        poutine.block(toy.guide, hide=["weights"]),
    ),
    "mask": lambda toy: (Adjust(["x"], mask=torch.arange(6) < 4)(toy.model), toy.guide),
    "tensor": lambda toy: (Adjust(["x"], scale=torch.tensor(0.5))(toy.model), toy.guide),
    "observed": lambda toy: (
        poutine.condition(toy.model, {"z": torch.randn(2, 6, 2)}),
        poutine.block(toy.guide, hide=["z"]),
    ),
}


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.filterwarnings("ignore:Found vars in model but not guide:UserWarning")
def test_handlers(name):
    assert_twins(lambda: Handled(HANDLERS[name]), [(binary(),)] * 15)


def test_a_module_counts_its_calls_in_a_buffer_that_it_replaces():
    """Nothing in a replay would see the buffer's successor."""
    program = Plain(lambda p, z, x: replacing(p, z))
    program.decoder.register_buffer("seen", torch.zeros(()))
    svi = CapturedSVI(program.model, program.guide, NaturalGradient(RATE, adam), TraceConjugate_ELBO())
    before = program.decoder.seen
    with pytest.raises(CaptureError, match="another tensor in the place of a parameter or buffer"):
        svi.step(torch.randn(6, 3))
    assert program.decoder.seen is before
    assert before == 0


def replacing(program, z):
    mean = program.decoder(z)
    program.decoder.seen = program.decoder.seen + 1
    return mean + program.decoder.seen


@pytest.mark.parametrize("eager", [True, False])
def test_autocast_runs_networks_alone_in_bfloat16(eager, single_precision):
    losses = {}
    for autocast in (None, torch.bfloat16):
        pyro.set_rng_seed(3)
        toy, seen, tables = Toy(), [], []
        toy.encoder.register_forward_hook(lambda *call, seen=seen: seen.append(call[-1].dtype))
        toy.decoder.register_forward_hook(lambda *call, seen=seen: seen.append(call[-1].dtype))
        elbo = TraceConjugate_ELBO()
        tabulate = elbo.tabulate
        elbo.tabulate = lambda *args, tables=tables, f=tabulate: [tables.append(t) or t for t in f(*args)]
        optim = NaturalGradient(0.1, partial(torch.optim.Adam, lr=1e-3))
        svi = CapturedSVI(toy.model, toy.guide, optim, elbo, autocast=autocast, eager=eager)
        x = toy.data(6)
        losses[autocast] = [svi.step(x) for _ in range(10)]
        assert set(seen) == {autocast or torch.float32}
        assert {table.dtype for t in tables for _, _, table in t.children} == {torch.float32}
        assert toy.weights.natural.dtype == toy.loc_precision.natural.dtype == torch.float64
        assert all(p.dtype == torch.float32 for p in toy.encoder.parameters())
    near, exact = (torch.tensor(losses[key])[1:].mean() for key in (torch.bfloat16, None))
    assert near != exact
    assert_close(near, exact, rtol=0.1, atol=0)  # z is drawn in bfloat16: other random numbers


def test_captured_autocast_agrees_with_eager(single_precision):
    """In float32 and bfloat16 a rounding error of λ may flip a bfloat16 bit (2^-8) some steps later."""
    settings = {"autocast": torch.bfloat16, "optimizer": partial(torch.optim.Adam, lr=1e-3)}
    assert_twins(a_toy(), [(binary(),)] * 20, {"rtol": 1e-2, "atol": 1e-2}, **settings)


class Recurrent(nn.Module):
    """Three numbers, one after another, out of two."""

    def __init__(self, kind):
        super().__init__()
        self.cells, self.last = kind(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, z):
        return self.last(self.cells(z.unsqueeze(-2).expand(*z.shape[:-1], 3, 2))[0]).squeeze(-1)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(8, 3)
        self.attend = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)  # with dropout

    def forward(self, z):
        return self.last(self.attend(self.first(z.unsqueeze(-1))).flatten(-2))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, z):
        return checkpoint(self.inner, z, use_reentrant=False)


@pytest.mark.parametrize(
    "decoder",
    [
        partial(Recurrent, nn.GRU),
        partial(Recurrent, nn.LSTM),
        Attending,
        Checkpointed,
        lambda: spectral_norm(nn.Linear(2, 3)),
        lambda: weight_norm(nn.Linear(2, 3)),
    ],
    ids=["gru", "lstm", "transformer", "checkpoint", "spectral norm", "weight norm"],
)
def test_networks_of_many_kinds(decoder):
    assert_twins(lambda: Plain(plainly, decoder()), [(torch.randn(6, 3),)] * 10, EXACT)


@pytest.mark.usefixtures("single_precision")
def test_lstm_in_single_precision():
    """For which eager steps on a CPU have kernels of their own."""
    rounding = {"rtol": 1e-4, "atol": 1e-5}
    assert_twins(lambda: Plain(plainly, Recurrent(nn.LSTM)), [(torch.randn(6, 3),)] * 10, rounding)
    assert torch.backends.mkldnn.enabled


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch.compile's own
def test_capturing_compiles_no_network():
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    def make():
        return Plain(plainly, torch.compile(nn.Linear(2, 3), backend=backend))

    trained(make, [(torch.randn(6, 3),)] * 3)
    assert not compiled
    trained(make, [(torch.randn(6, 3),)] * 3, eager=True)
    assert compiled


def compiled_in_place():
    decoder = nn.Linear(2, 3)
    decoder.compile(backend="eager")
    return decoder


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch.compile's own
@pytest.mark.parametrize(
    "decoder",
    [lambda: torch.compile(nn.Linear(2, 3), backend="eager"), compiled_in_place],
    ids=["", "in place"],
)
def test_compiled_networks(decoder):
    """What is recorded of them is what they do, as of others; a change of mode is seen through."""

    def modes(step, svi, program):
        program.decoder.train(step != 3)

    svi = assert_twins(lambda: Plain(plainly, decoder()), [(torch.randn(6, 3),)] * 6, EXACT, between=modes)
    assert len(svi._captures) == 1 and max(svi._captures.values()) == 3


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [(28, 28), (64, 64, 3), (20, 30, 3), (140, 150)])
def test_convolutions_with_channels_last(shape, fused):
    """The gradients of their weights come out with channels last, which a fused optimiser must not see."""

    def make():
        colour = len(shape) == 3
        observation = GaussianObservation(3) if colour else BernoulliObservation(2)
        width = 0.03 if colour else 0.1
        nets = ConvEncoder(shape, 2, width), ConvDecoder(2, shape, observation.outputs, width)
        return VAE(*nets, observation, 2, 6)

    data = [torch.rand(6, *shape).round()]
    optimizer = partial(torch.optim.Adam, lr=1e-2, fused=fused)
    assert_twins(make, batches_of(data, 3, 6), optimizer=optimizer)
