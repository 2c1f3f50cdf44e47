"""A hidden semi-Markov model by state expansion: phases of a machine that last for typical times.

    python examples/semi_markov.py [--steps 300] [--draws 200] [--stages 4] [--picture semi_markov.png]

In a hidden Markov model the time that a phase lasts is geometric: one step is the most probable. Here a phase
is a row of stages, which are gone through one after another, each with the same probability to go on; the
time in the phase is negative binomial. The transitions of all stages are products of few probabilities, one
number each, so that their posteriors stay Beta and Dirichlet: one Gibbs sweep draws the path, then all
parameters at once. Printed are the share of steps whose phase is found, with this model and with one stage,
and how long each phase lasts.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch

from pyro_fmvae import ConjugateGibbs, HiddenMarkov

PHASES, NOISE = 3, 2.0
LEVELS = torch.tensor([0.0, 2.0, 4.0])
STEPS = torch.tensor([6.0, 12.0, 18.0])  # that each phase lasts, on average


def places(stages):
    """Which probability of :func:`model` each transition has, [stages of all phases, the same]; 0 is none."""
    table = torch.zeros(PHASES * stages, PHASES * stages, dtype=torch.int64)
    for phase in range(PHASES):
        for stage in range(stages):
            here = phase * stages + stage
            table[here, here] = 1 + phase
            if stage + 1 < stages:
                table[here, here + 1] = 1 + PHASES + phase
                continue
            others = [other for other in range(PHASES) if other != phase]
            for number, other in enumerate(others):
                first = 1 + 2 * PHASES + phase * len(others)
                table[here, other * stages] = first + number
    return table


def model(y, table):  # [T]
    stages = len(table) // PHASES
    with pyro.plate("phases", PHASES):
        ahead = pyro.sample("ahead", dist.Beta(1.0, 2.0))  # to the next stage, or out of the last one
        jumps = pyro.sample("jumps", dist.Dirichlet(torch.ones(PHASES - 1)))  # to the other phases
        level = pyro.sample("level", dist.Normal(0.0, 5.0))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    out = (ahead.unsqueeze(-1) * jumps).flatten()
    transitions = torch.cat([torch.zeros(1), 1 - ahead, ahead, out])[table]
    start = torch.ones(len(table)) / len(table)
    readings = dist.Normal(level.repeat_interleave(stages), precision.rsqrt())
    chain = HiddenMarkov(start, transitions, readings, len(y))
    pyro.sample("y", chain, obs=y)
    return chain


def data(steps, stages):
    """Readings and true phases, each [T]."""
    phases, phase = [], 0
    while len(phases) < steps:
        waits = dist.Geometric(stages / STEPS[phase]).sample((stages,)) + 1
        phases += [phase] * int(waits.sum())
        phase = (phase + int(torch.randint(1, PHASES, ()))) % PHASES
    path = torch.tensor(phases[:steps])
    return LEVELS[path] + NOISE * torch.randn(steps), path


def probabilities(draws, y, table):
    """Probabilities of the phases at each step, lowest level first, averaged over draws: [T, phases]."""
    total = torch.zeros(len(y), PHASES)
    for number, level in enumerate(draws["level"]):
        values = {name: values[number] for name, values in draws.items()}
        chain = pyro.condition(model, data=values)(y, table)
        of_stages = chain.chain(y).posterior()
        total += of_stages.unflatten(-1, (PHASES, -1)).sum(-1)[:, level.argsort()]
    return total / len(draws["level"])


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--stages", type=int, default=4, choices=range(2, 7), help="of each phase")
    parser.add_argument("--picture", type=Path, help="file for a picture of the phases")
    options = parser.parse_args(argv)
    pyro.set_rng_seed(0)
    y, path = data(options.steps, options.stages)
    found = {}
    for stages in (1, options.stages):
        table = places(stages)
        kernel = ConjugateGibbs(model)
        if stages == options.stages:
            print(kernel.plan(y, table))
        draws = kernel.draw(y, table, num_samples=options.draws, warmup_steps=options.draws, num_chains=1)
        draws = {name: values[0, :: max(options.draws // 50, 1)] for name, values in draws.items()}
        found[stages] = probabilities(draws, y, table)
        right = (found[stages].argmax(-1) == path).float().mean()
        order = draws["level"].argsort(-1)
        lasts = (stages / draws["ahead"].gather(-1, order)).median(0).values
        times = ", ".join(f"{each:.1f}" for each in lasts)
        print(f"{stages} stages: phase found at {right:.3f} of the steps; phases last {times} steps")
    print("true times on average:", ", ".join(f"{each:.1f}" for each in STEPS))
    if options.picture:
        fig, axes = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
        axes[0].plot(y, "k.", ms=3)
        axes[0].step(range(len(y)), LEVELS[path], color="#3b6ea5", where="mid")
        axes[0].set(ylabel="reading")
        axes[1].imshow(
            found[options.stages].T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest"
        )
        axes[1].step(range(len(y)), path, color="#e0702a", lw=1, where="mid")
        axes[1].set(xlabel="step", ylabel="phase", yticks=range(PHASES))
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(options.picture, dpi=100)


if __name__ == "__main__":
    main()
