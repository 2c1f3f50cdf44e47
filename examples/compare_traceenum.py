"""One program under three bounds: the closed form, and Pyro's TraceEnum_ELBO in two ways.

    python examples/compare_traceenum.py [--steps 300] [--samples 200] [--seed 0]

The program is that of ``own_model.py``. It is trained briefly, and then evaluated at the same parameters and
on the same batch under

* ``TraceConjugate_ELBO``: assignments are summed out; mixing weights, means and precisions are integrated
  out;
* ``TraceEnum_ELBO`` with the assignment in the *guide* at its optimal probabilities (``with_assignments``):
  the same bound in expectation, with draws in place of integrals, as the script asserts;
* ``TraceEnum_ELBO`` with the assignment only in the *model*: a tighter bound, because it uses the exact
  q(r | z) instead of the mean-field q(r). Its values are not comparable with the others.

Each row gives the bound with its standard error over ``--samples`` evaluations, the noise of the gradient
at the encoder's first layer (root of the summed variances, and its ratio to the closed form's), and the
median time of one loss with gradients.
"""

import argparse
import math
import statistics
import time
import warnings
from functools import partial

import pyro
import torch
from own_model import B, Guide, Model, N, measurements
from pyro.infer import SVI, TraceEnum_ELBO

from pyro_fmvae import NaturalGradient, RobbinsMonro, TraceConjugate_ELBO, with_assignments


def trained(x, steps, seed):
    """Train the program of own_model.py for some steps, with components seeded half-way."""
    model, elbo = Model(), TraceConjugate_ELBO()
    guide = Guide(model)
    optim = NaturalGradient(RobbinsMonro(delay=1000.0, first_step=0.05), partial(torch.optim.Adam, lr=5e-3))
    svi = SVI(model, guide, optim, elbo)
    for step in range(steps):
        if step == steps // 2:
            guide.conjugate(x)  # creates its parameters if this is the first call
            with torch.no_grad():
                loc, scale = guide.encode(x)
            guide.conjugate.seed("z", loc, scale, torch.Generator().manual_seed(seed))
        svi.step(x[:, torch.randint(N, (B,))])
    return model, guide


def measure(model, contestants, batch, modules, samples):
    """Bound per data point, its standard error, noise of a gradient and median ms of each contestant."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    weight = next(modules[-1].encoder.parameters())
    records = [[] for _ in contestants]
    for _ in range(samples):  # in turns, so that other load on the machine affects all alike
        for (guide, elbo), record in zip(contestants, records, strict=True):
            start = time.perf_counter()
            loss = elbo.loss_and_grads(model, guide, batch)
            record.append((-loss / N, weight.grad.flatten() / N, time.perf_counter() - start))
            for parameter in parameters:
                parameter.grad = None
    for record in records:
        values, gradients, seconds = zip(*record, strict=True)
        error = statistics.stdev(values) / math.sqrt(samples)
        noise = torch.stack(gradients).var(0).sum().sqrt().item()
        yield statistics.mean(values), error, noise, 1e3 * statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps before the comparison")
    parser.add_argument("--samples", type=int, default=200, help="evaluations per bound, at least 2")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pyro.set_rng_seed(options.seed)
    x, _ = measurements(options.seed)
    model, guide = trained(x, options.steps, options.seed)
    batch = x[:, :B]
    enumerated = TraceEnum_ELBO(max_plate_nesting=2)
    # Pyro wrongly warns that x depends on the enumerated assignment of the guide.
    warnings.filterwarnings("ignore", message=".*possibly invalid dependency", category=RuntimeWarning)
    contestants = {
        "TraceConjugate_ELBO": (guide, TraceConjugate_ELBO()),
        "TraceEnum_ELBO, r in the guide": (with_assignments(model, guide), enumerated),
        "TraceEnum_ELBO, r in the model": (guide, enumerated),
    }
    rows = list(measure(model, list(contestants.values()), batch, [model, guide], options.samples))
    print(f"{'':32}{'bound':>9} ± {'error':7}{'noise':>9}{'ratio':>7}{'ms':>8}   (nats per data point)")
    for name, (mean, error, noise, ms) in zip(contestants, rows, strict=True):
        print(f"{name:32}{mean:9.3f} ± {error:<7.3f}{noise:9.4f}{noise / rows[0][2]:7.2f}{ms:8.2f}")
    (ours, ours_error, *_), (theirs, theirs_error, *_), (tighter, its_error, *_) = rows
    gap, error = ours - theirs, math.hypot(ours_error, theirs_error)
    assert abs(gap) <= 5 * error, (
        f"the first two bounds should agree, but they differ by {gap:.3f} ± {error:.3f}"
    )
    higher, its_error = tighter - ours, math.hypot(ours_error, its_error)
    print(f"the first two differ by {gap:.3f} ± {error:.3f}", end="; ")
    print(f"the third is higher than the first by {higher:.3f} ± {its_error:.3f}")


if __name__ == "__main__":
    main()
