"""Processes that train together, each of which writes down what it found.

    python rank.py FOLDER TWO THREE

There are three processes, forked so that they need not import everything again. The first two run the cases
TWO together (names, separated by semicolons) while the last one runs all of them alone; then all three run
the cases THREE. The tests read FOLDER/RANK.json.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as pyro_dist
import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "infer"))

from programs import Toy

from pyro_fmvae import checkpoint
from pyro_fmvae.app.cli import run_command
from pyro_fmvae.app.runs import training
from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import BernoulliObservation, ShiftedSigmoid
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.ranks import Ranks, together
from pyro_fmvae.learn import BSCOptions, Budget, VAEOptions, fit
from pyro_fmvae.learn.gradient_em import GradientEM
from pyro_fmvae.learn.stepwise_em import StepwiseEM
from pyro_fmvae.learn.vae_phases import HybridEM
from pyro_fmvae.models import (
    VAE,
    BinarySparseCoding,
    PseudoInputs,
    SelectionSparsePrior,
    VariationalSparseCoding,
)
from pyro_fmvae.models.em.binary_em import BinaryEM
from pyro_fmvae.nn import MLPDecoder, MLPEncoder, SpikeHead

FOLDER = Path(sys.argv[1])
CASES: dict[str, Callable[[Any], Any]] = {}
STEPS = 9  # of a case: batches of 7, 7, 7 and 1 rows, so that there are ranks without rows


def case(function: Callable[..., Any], name: str = "", **settings: Any) -> None:
    """Have a case run: ``function(group, **settings)`` gives something for JSON."""
    CASES[name or function.__name__] = partial(function, **settings)


def batches(*data: torch.Tensor, steps: int, size: int = 7) -> list[tuple[torch.Tensor, ...]]:
    epoch = list(zip(*(tensor.split(size) for tensor in data), strict=True))
    return [epoch[step % len(epoch)] for step in range(steps)]


def train(
    program: nn.Module,
    given: list[Any],
    group: Any,
    elbo: TraceConjugate_ELBO,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Steps on batches, and where they lead."""
    optim = NaturalGradient(0.3, partial(torch.optim.Adam, lr=1e-2))
    svi = CapturedSVI(program.model, program.guide, optim, elbo, group=group, **settings)
    losses = [svi.step(*batch, **(options or {})) for batch in given]
    state = {name: value.flatten().tolist() for name, value in program.state_dict().items()}
    adam = [value.sum().item() for one in optim.others.state.values() for value in one.values()]
    return {"losses": losses, "state": state, "adam": adam, "random": torch.get_rng_state().tolist()}


class Undrawn(Toy):
    """Its likelihood does not depend on z, so that a step draws nothing that matters."""

    def likelihood(self, z: torch.Tensor) -> Any:
        return pyro_dist.Bernoulli(logits=self.decoder.bias).to_event(1)


def toy(
    group: Any,
    dtype: torch.dtype = torch.float64,
    labelled: bool = False,
    steps: int = STEPS,
    elbo: dict[str, Any] | None = None,
    kind: type[Toy] = Toy,
    **settings: Any,
) -> dict[str, Any]:
    torch.set_default_dtype(dtype)
    program = kind(num_data=22, standard=bool(elbo and elbo.get("label_weight")))
    x = program.data(22)
    labels = torch.randint(-1, 3, (22, 2)).unbind(1)
    given = batches(x, steps=steps)
    if labelled:
        given = [(x, torch.stack(both)) for x, *both in batches(x, *labels, steps=steps)]
    return train(program, given, group, TraceConjugate_ELBO(**(elbo or {})), **settings)


def vae(group: Any, **settings: Any) -> dict[str, Any]:
    """A total correlation, which is no sum over points."""
    torch.set_default_dtype(torch.float64)
    model = VAE(MLPEncoder((5,), 3), MLPDecoder(3, (5,)), BernoulliObservation(1), 3, 22)
    x = torch.bernoulli(torch.full((22, 5), 0.4))
    given = batches(x, steps=STEPS)
    return train(model, given, group, TraceConjugate_ELBO(), {"tc_weight": 4.0}, **settings)


def sparse(group: Any, **settings: Any) -> dict[str, Any]:
    """A penalty of the mean over the batch of what a network selects."""
    torch.set_default_dtype(torch.float64)
    prior = SelectionSparsePrior(PseudoInputs(3, (5,), (0.0, 1.0)), nn.Linear(5, 3))
    networks = MLPEncoder((5,), 4, (5,), SpikeHead), MLPDecoder(4, (5,), 1, (5,))
    model = VariationalSparseCoding(
        *networks, BernoulliObservation(1), 4, 22, prior, ShiftedSigmoid(), sparsity=0.2
    )
    x = torch.bernoulli(torch.full((22, 5), 0.4))
    return train(model, batches(x, steps=STEPS), group, TraceConjugate_ELBO(), **settings)


def binary(group: Any, missing: bool = False) -> dict[str, Any]:
    """EM in closed form; the last batch has a single point, and no other than it lacks a number."""
    torch.set_default_dtype(torch.float64)
    model = BinarySparseCoding((6,), 22, BinaryEM(4))
    phase = StepwiseEM(model, model.em, Budget(12), starts=2, reseed_every=7)
    return fitted(phase, table(missing))


def gradient_em(group: Any) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    model = BinarySparseCoding((6,), 22, BinaryEM(4))
    phase = GradientEM(model, BSCOptions(learning_rate=0.01), Budget(STEPS))
    phase.group = group
    return fitted(phase, table(False))


def free(group: Any, eager: bool = True) -> dict[str, Any]:
    """Variational EM: free steps on the posteriors of points."""
    torch.set_default_dtype(torch.float64)
    model = VAE(MLPEncoder((6,), 3), MLPDecoder(3, (6,)), BernoulliObservation(1), 3, 22)
    phase = HybridEM(model, VAEOptions(eager=eager, free_steps=3, total_correlation=2.0), Budget(5))
    phase.group = group
    return fitted(phase, (table(False) > 0).double())


def table(missing: bool) -> torch.Tensor:
    x = torch.randn(22, 6) + (torch.rand(22, 1) < 0.4) * torch.arange(6.0)
    if missing:
        x[[3, 21], [2, 5]] = torch.nan
    return x


def fitted(phase: Any, x: torch.Tensor) -> dict[str, Any]:
    loader = batches(x, torch.arange(22), steps=4)
    records = [record.loss for record in fit([phase], loader) if record.loss is not None]
    state = {name: value.flatten().tolist() for name, value in phase.program.state_dict().items()}
    return {"losses": records, "state": state, "random": torch.get_rng_state().tolist()}


def many_seeds(group: Any) -> dict[str, Any]:
    """Where a few steps lead from the same parameters, and their losses: a row of numbers for each seed."""
    torch.set_default_dtype(torch.float64)
    x, rows = Toy().data(7), list[list[float]]()
    start = Toy(num_data=22).state_dict()
    for seed in range(120):
        program = Toy(num_data=22)
        program.load_state_dict(start)
        torch.manual_seed(seed)
        found = train(program, [(x,)] * 2, group, TraceConjugate_ELBO(), eager=True)
        rows.append([*found["losses"], *(sum(values) for values in found["state"].values())])
    return {"rows": rows}


def failing(group: Any, **settings: Any) -> list[str]:
    """What is said when one rank's rows have no finite loss; nothing has changed, and training goes on."""
    torch.set_default_dtype(torch.float64)
    program = Toy(num_data=22)
    optim = NaturalGradient(0.3, partial(torch.optim.Adam, lr=1e-2))
    svi = CapturedSVI(program.model, program.guide, optim, TraceConjugate_ELBO(), group=group, **settings)
    x = program.data(22).split(7)
    svi.step(x[0])
    before, bad, said = digest(program), x[1].clone(), list[str]()
    bad[-1] = torch.nan
    try:
        svi.step(bad)
    except ValueError as error:
        said = [type(error).__name__, str(error)]
    return [*said, str(before == digest(program)), str(svi.step(x[2]))]


def refusals(group: Any) -> list[str]:
    """Programs that cannot be shared out."""
    torch.set_default_dtype(torch.float64)
    x, found = Toy().data(7), list[str]()
    full = Toy(num_data=22)
    plates = full.plates(x)
    full.plates = lambda x: (x, pyro.plate("data", len(x), dim=-1), *plates[2:])
    normed = nn.Module()
    normed.norm, normed.model = nn.BatchNorm1d(3), None
    for make in (
        lambda: svi_of(full, group, eager=True).step(x),
        lambda: CapturedSVI(normed, normed, NaturalGradient(0.3), TraceConjugate_ELBO(), group=group),
    ):
        try:
            found.append(str(make()))
        except ValueError as error:
            found.append(str(error))
    return found


def svi_of(program: Toy, group: Any, **settings: Any) -> CapturedSVI:
    optim = NaturalGradient(0.3, partial(torch.optim.Adam, lr=1e-2))
    return CapturedSVI(program.model, program.guide, optim, TraceConjugate_ELBO(), group=group, **settings)


def digest(program: nn.Module) -> float:
    return float(sum(value.double().sum() for value in program.state_dict().values()))


def command(group: Any, model: str, options: Sequence[str]) -> dict[str, Any]:
    """A training by the command line, without its report."""
    torch.set_default_dtype(torch.float32)
    ranks = Ranks(group)
    ranks.checked = True
    out = FOLDER / f"{model}-{ranks.size}"
    data = FOLDER / ("table.npz" if model == "mixture" else "pictures.npz")
    given = [
        "--data",
        data,
        "--model",
        model,
        "--out",
        out,
        "--batch-size",
        30,
        "--compile",
        "false",
        *options,
    ]
    with together(ranks), redirect_stdout(sys.stderr):
        status = run_command(["train", *map(str, given)])
        ranks.largest(status)  # the last checkpoint is there
    state = checkpoint.load(out / "checkpoint")[0]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    values = {name: value.flatten().tolist() for name, value in state["model"].items() if value.numel()}
    return {
        "losses": [line["elbo"] for line in lines],
        "state": values,
        "random": state["random"]["cpu"].tolist(),
    }


def write_data(folder: Path) -> None:
    """160 training points, so that the last batch of 30 is short: pictures and a table."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, (200, 1))
    x = generator.random((200, 8, 8)) < 0.2 + 0.4 * labels[:, :, None]
    np.savez(folder / "pictures.npz", x=x.astype(np.uint8), labels=labels)
    np.savez(folder / "table.npz", x=generator.normal(size=(200, 4)) + 4 * labels, labels=labels)


for name, how in {"eager": {"eager": True}, "captured": {}}.items():
    case(toy, f"undrawn, {name}", kind=Undrawn, **how)
    case(toy, f"undrawn, recompute, {name}", kind=Undrawn, recompute=True, **how)
    case(toy, name, **how)
    case(toy, f"recompute, {name}", recompute=True, **how)
    case(toy, f"dependence, {name}", labelled=True, elbo={"independence_weight": 3.0}, **how)
    case(vae, f"total correlation, {name}", **how)
    case(sparse, f"sparse codes, {name}", **how)
    case(failing, f"failing, {name}", **how)
    case(free, f"free steps, {name}", eager=name == "eager")
case(toy, "undrawn, compiled", kind=Undrawn, compile=True)
case(toy, "undrawn, single precision", kind=Undrawn, dtype=torch.float32)
case(toy, "undrawn, labels", kind=Undrawn, labelled=True, elbo={"label_weight": 5.0})
case(toy, "particles", elbo={"num_particles": 2, "vectorize_particles": True})
case(binary, "binary EM")
case(binary, "binary EM, missing numbers", missing=True)
case(gradient_em, "gradient EM")
STAGES = ("--pretrain-iterations=6", "--prior-iterations=4", "--joint-iterations=20")
SPARSE = ("--joint-iterations=4", "--refine-iterations=2")
case(command, "fmvae", model="fmvae", options=("--labels=0.5", *STAGES, "--restart-every=8"))
case(command, "vsc", model="vsc", options=("--pretrain-iterations=3", "--joint-iterations=7"))
case(command, "max-sparse", model="max-sparse", options=SPARSE)
case(command, "mixture", model="mixture", options=("--joint-iterations=5",))
case(many_seeds)
case(refusals)


def start(rank: int, size: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), size)
    limit = timedelta(seconds=1200)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    torch.set_num_threads(1)


def run(group: Any, names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        pyro.enable_validation(True)
        found[name] = CASES[name](group)
    return found


def main(rank: int, folder: Path, two: list[str], three: list[str]) -> None:
    start(rank, 3, folder)
    training.report = lambda *_: None
    training.CHECK_EVERY = 3
    if rank == 0:
        write_data(folder)
    dist.barrier()
    pair = dist.new_group([0, 1])
    if rank < 2:
        found = {"two": run(pair, two)}
    else:
        found = {"one": run(None, [name for name in CASES if name in (*two, *three)])}
    found["three"] = run(dist.group.WORLD, three)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = FOLDER, *(names.split(";") for names in sys.argv[2:])
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=main, args=(rank, *arguments)) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
