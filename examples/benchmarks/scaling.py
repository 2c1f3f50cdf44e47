"""Cost of the prior against the number of components and of factors.

    python examples/benchmarks/scaling.py                        # K from 2 to 65,536; I from 1 to 64
    python examples/benchmarks/scaling.py --components 64,512 --factors 1,4 --plot scaling.png
    python examples/benchmarks/scaling.py --json --device cuda

The step is on the mixture alone, given q(z) of a batch, without networks. K grows at I = 1, D = 64, B = 64; I
grows at K = 64, D = 8, B = 64. Methods take turns. ``ms`` is a median, and ``peak_mb`` the peak memory
(10^6 bytes) of a step above that before it. A method stops when its memory, extrapolated from its last
measurement, would exceed ``--limit-mb``.
"""

import argparse
import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from command_line import Parser, machine, natural_number
from contest import Contestant, take_turns
from plain_programs import AssignmentInModel, PlainProgram
from pyro.infer import SVI
from pyro_methods import captured_prior
from scaling_plot import draw
from start import Setting, Step
from torch import Tensor, nn

from pyro_fmvae.distributions import BernoulliObservation
from pyro_fmvae.infer import NaturalGradient
from pyro_fmvae.models import FactorialMixtureVAE

NUM_DATA = 50_000
COMPONENTS = [2, 8, 64, 512, 4096, 65_536]
FACTORS = [1, 2, 4, 16, 64]
BATCH = 64


class Given(nn.Module):
    """A stand-in for an encoder: x [B, 2·I·D] contains location and scale."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = x.chunk(2, -1)
        return loc, scale


def prior(setting: Setting) -> FactorialMixtureVAE:
    """A model of the mixture only."""
    sizes = [setting.K] * setting.I
    return FactorialMixtureVAE(Given(), nn.Identity(), BernoulliObservation(1), sizes, setting.D, NUM_DATA)


def encodings(setting: Setting, seed: int) -> Tensor:
    """Eight batches of q(z) [8·B, 2·I·D]."""
    shape = (8 * setting.B, setting.I * setting.D)
    loc = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return torch.cat([loc, torch.full_like(loc, 0.3)], -1)


def plain_prior(program: type[PlainProgram], model: FactorialMixtureVAE) -> Step:
    """A step of a plain Pyro program without networks."""
    contender = program(model, prior_only=True)
    parameters = list(contender.posterior.parameters())
    adam = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    optim = NaturalGradient(1.0, lambda _: adam, parameters)
    return SVI(contender.model, contender.guide, optim, contender.elbo()).step


METHODS: dict[str, Callable[[FactorialMixtureVAE], Step]] = {
    "captured": captured_prior,
    "captured compiled": lambda model: captured_prior(model, compiled=True),
    AssignmentInModel.name: lambda model: plain_prior(AssignmentInModel, model),
}


class Memory:
    """Prediction of a method's memory from its last measurement: none grows faster than I·K·D."""

    def __init__(self, limit_mb: float) -> None:
        self.limit_mb = limit_mb
        self._last: dict[str, tuple[float, int]] = {}

    def too_much(self, method: str, setting: Setting) -> str | None:
        """The reason why the method cannot run at a setting, or None."""
        if method not in self._last:
            return None
        mb, size = self._last[method]
        foretold = mb * setting.I * setting.K / size
        return (
            f"would take {foretold:.0f} MB, more than {self.limit_mb:.0f}"
            if foretold > self.limit_mb
            else None
        )

    def note(self, method: str, setting: Setting, mb: float) -> None:
        """Record a measurement."""
        self._last[method] = mb, setting.I * setting.K


def measure(
    setting: Setting, methods: Sequence[str], memory: Memory, steps: int, seed: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """One record per method."""
    torch.compiler.reset()
    torch.manual_seed(seed)
    start = prior(setting).to(device)
    batches = list(encodings(setting, seed).to(device).split(setting.B))
    stopped = {name: memory.too_much(name, setting) for name in methods}
    contestants = {
        name: Contestant(name, METHODS[name](copy.deepcopy(start)), device)
        for name in methods
        if stopped[name] is None
    }
    if contestants:
        take_turns(list(contestants.values()), batches, steps)
    for name in methods:
        record = {"method": name, **asdict(setting)}
        if name not in contestants:
            yield record | {"skipped": stopped[name]}
            continue
        mb = contestants[name].peak_mb(batches[0])
        memory.note(name, setting, mb)
        yield record | {"ms": round(contestants[name].ms, 4), "peak_mb": round(mb, 3)}


def numbers(text: str) -> list[int]:
    """Parse ascending whole numbers >= 1."""
    values = [natural_number(part) for part in text.split(",")]
    if values != sorted(set(values)):
        raise argparse.ArgumentTypeError(f"expected growing numbers, got '{text}'")
    return values


def as_row(record: dict[str, Any]) -> str:
    """Format a record as a line of the table."""
    place = "{varied:3}{method:38}{I:>4}{D:>5}{K:>7}{B:>5}".format_map(record)
    if "skipped" in record:
        return f"{place}  {record['skipped']}"
    return f"{place}{record['ms']:>12.3f} ms{record['peak_mb']:>12.3f} MB"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__)
    parser.add_argument("--components", type=numbers, default=COMPONENTS, metavar="K,K,...")
    parser.add_argument("--factors", type=numbers, default=FACTORS, metavar="I,I,...")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--steps", type=natural_number, default=50, help="timed steps of the fastest method")
    parser.add_argument(
        "--limit-mb", type=natural_number, default=1074, help="largest memory of a step; default: 1 GiB"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.methods) - set(METHODS):
        parser.error(f"--methods: expected some of {', '.join(METHODS)}, got {', '.join(sorted(unknown))}")
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(options.device), flush=True)
    sweeps = {
        "K": [Setting(1, 64, size, BATCH) for size in options.components],
        "I": [Setting(count, 8, 64, BATCH) for count in options.factors],
    }
    records = []
    for varied, settings in sweeps.items():
        memory = Memory(options.limit_mb)
        for setting in settings:
            for record in measure(
                setting, options.methods, memory, options.steps, options.seed, options.device
            ):
                records.append(record | {"varied": varied})
                print(json.dumps(records[-1]) if options.json else as_row(records[-1]), flush=True)
    if options.plot:
        draw(records, options.plot)


if __name__ == "__main__":
    main()
