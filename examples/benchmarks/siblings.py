"""Cost of one training step of the sibling models, against the same loss in bare PyTorch.

    python examples/benchmarks/siblings.py
    python examples/benchmarks/siblings.py --models vsc --latents 20,200 --json
    python examples/benchmarks/siblings.py --device cuda

The models are the plain VAE and variational sparse coding (mixture prior of 10 pseudo-inputs, shifted
sigmoid, penalty), with perceptrons of 400 units on 28×28 random bits and batches of 128. Methods take turns
in short blocks of steps in one process. ``ratio`` is the median over rounds of the ratio to the hand-written
loss, eager with a fused Adam, with its quartiles. ``by hand, compiled`` has the whole step under
``torch.compile``.
"""

import copy
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from bare_methods import Networks, plain_loss, whole_step
from command_line import Parser, machine, natural_number
from contest import Contestant, take_turns
from pyro.infer import SVI
from start import IMAGE, NUM_DATA, Step, fused_adam, random_images
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import BernoulliObservation, ShiftedSigmoid
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.models import VAE, MixtureSparsePrior, PseudoInputs, VariationalSparseCoding
from pyro_fmvae.nn import MLPDecoder, MLPEncoder, SpikeHead

HIDDEN, BATCH, PSEUDO_INPUTS, SPARSITY, RATE = (400,), 128, 10, 0.2, 1e-4
COLUMNS = ("method", "model", "J", "ms", "ratio", "quartiles", "peak_mb")
ROW = "{method:26}{model:6}{J:>5}{ms:>10}{ratio:>9}  {quartiles:17}{peak_mb:>9}"


def vae(latents: int) -> VAE:
    """The library's VAE."""
    networks = MLPEncoder(IMAGE, latents, HIDDEN), MLPDecoder(latents, IMAGE, 1, HIDDEN)
    return VAE(*networks, BernoulliObservation(2), latents, NUM_DATA)


def vsc(latents: int) -> VariationalSparseCoding:
    """The library's variational sparse coding."""
    networks = MLPEncoder(IMAGE, latents, HIDDEN, SpikeHead), MLPDecoder(latents, IMAGE, 1, HIDDEN)
    prior = MixtureSparsePrior(PseudoInputs(PSEUDO_INPUTS, IMAGE, (0.0, 1.0)))
    size = latents, NUM_DATA
    return VariationalSparseCoding(
        *networks, BernoulliObservation(2), *size, prior, ShiftedSigmoid(), SPARSITY
    )


class SparseByHand(nn.Module):
    """Loss of variational sparse coding for all N points, written without the library."""

    def __init__(self, model: VariationalSparseCoding) -> None:
        super().__init__()
        self.encoder, self.decoder, self.prior = model.encoder, model.decoder, model.prior

    def forward(self, x: Tensor) -> Tensor:
        loc, scale, logits = self.encoder(x)
        slab = loc + scale * torch.randn_like(scale)
        z = torch.sigmoid(50.0 * (torch.rand_like(scale) - torch.sigmoid(-logits))) * slab
        reconstruction = binary_cross_entropy_with_logits(self.decoder(z).squeeze(-3), x, reduction="sum")
        m, s, v = self.encoder(self.prior.pseudo_inputs())
        on, off = logits.sigmoid().unsqueeze(1), torch.sigmoid(-logits).unsqueeze(1)
        normal = (s / scale.unsqueeze(1)).log() - 0.5
        normal = normal + 0.5 * (scale.square().unsqueeze(1) + (loc.unsqueeze(1) - m).square()) / s.square()
        kl = on * (normal + logsigmoid(logits).unsqueeze(1) - logsigmoid(v))
        kl = kl + off * (logsigmoid(-logits).unsqueeze(1) - logsigmoid(-v))
        bound = torch.log(torch.tensor(float(PSEUDO_INPUTS))) - (-kl.sum(-1)).logsumexp(1)
        share = v.sigmoid().mean()
        penalty = share * (share / SPARSITY).log() + (1 - share) * ((1 - share) / (1 - SPARSITY)).log()
        return NUM_DATA * ((reconstruction + bound.sum()) / len(x) + loc.shape[-1] * penalty)


class PlainByHand(Networks):
    """Loss of a VAE for all N points, written without the library."""

    def forward(self, x: Tensor) -> Tensor:
        return plain_loss(super().forward(x), NUM_DATA)


MAKERS: dict[str, tuple[Callable[[int], Any], Callable[[Any], nn.Module]]] = {
    "vae": (vae, PlainByHand),
    "vsc": (vsc, SparseByHand),
}


def by_hand(model: Any, hand: Callable[[Any], nn.Module]) -> Step:
    """The hand-written loss with a fused Adam."""
    module = hand(model)
    optimiser = fused_adam(RATE)(list(module.parameters()))

    def step(x: Tensor) -> Tensor:
        loss = module(x)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    return step


def by_hand_compiled(model: Any, hand: Callable[[Any], nn.Module]) -> Step:
    """The hand-written loss with the whole step compiled, including Adam."""
    step = torch.compile(whole_step(hand(model), lambda loss: (loss, (loss,)), RATE), dynamic=False)
    return lambda x: step(x)[0]


def of_library(model: Any, _: object, kind: Callable[..., Any], **options: Any) -> Step:
    """The library's model under ``TraceConjugate_ELBO``."""
    optim = NaturalGradient(1.0, fused_adam(RATE), model.parameters())
    return kind(model.model, model.guide, optim, TraceConjugate_ELBO(), **options).step


METHODS: dict[str, Callable[[Any, Any], Step]] = {
    "by hand": by_hand,
    "by hand, compiled": by_hand_compiled,
    "captured": partial(of_library, kind=CapturedSVI),
    "captured, compiled": partial(of_library, kind=CapturedSVI, compile=True),
    "SVI, eager": partial(of_library, kind=SVI),
}
FLOOR = "by hand"


def measure(
    name: str, latents: int, methods: Sequence[str], steps: int, seed: int, device: torch.device
) -> list[dict[str, Any]]:
    """One record per method."""
    torch.manual_seed(seed)
    torch.compiler.reset()
    make, hand = MAKERS[name]
    start = make(latents).to(device)
    contestants = {
        method: Contestant(method, METHODS[method](copy.deepcopy(start), hand), device) for method in methods
    }
    batches = list(random_images(8 * BATCH, seed).to(device).split(BATCH))
    take_turns(list(contestants.values()), batches, steps)
    records = []
    for method, contestant in contestants.items():
        low, ratio, high = contestant.ratio(contestants[FLOOR])
        records.append(
            {
                "method": method,
                "model": name,
                "J": latents,
                "ms": round(contestant.ms, 4),
                "ratio": round(ratio, 4),
                "ratio_quartiles": [round(low, 4), round(high, 4)],
                "peak_mb": round(contestant.peak_mb(batches[0]), 3),
            }
        )
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, pictures=False)
    parser.add_argument(
        "--models", type=lambda text: text.split(","), default=list(MAKERS), help="models: vae,vsc"
    )
    latents = {"type": lambda text: [natural_number(part) for part in text.split(",")], "default": [40, 200]}
    parser.add_argument("--latents", **latents, help="numbers of latents: 40,200")
    parser.add_argument("--methods", type=lambda text: text.split(";"), default=list(METHODS))
    parser.add_argument("--steps", type=natural_number, default=200, help="timed steps of the fastest method")
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.models} - {*MAKERS}):
        parser.error(f"--models: expected some of {', '.join(MAKERS)}, got {', '.join(unknown)}")
    if not {FLOOR} <= {*options.methods} <= {*METHODS}:
        parser.error(f"--methods: expected '{FLOOR}' and others of {'; '.join(METHODS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(options.device), ROW.format_map({name: name for name in COLUMNS}), sep="\n", flush=True)
    for name in options.models:
        for latents in options.latents:
            how = options.steps, options.seed, options.device
            for record in measure(name, latents, options.methods, *how):
                low, high = record["ratio_quartiles"]
                row = record | {"quartiles": f"{low:.2f} - {high:.2f}"}
                print(json.dumps(record) if options.json else ROW.format_map(row), flush=True)


if __name__ == "__main__":
    main()
