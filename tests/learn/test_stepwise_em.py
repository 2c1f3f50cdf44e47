import copy
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

from pyro_fmvae.data import Batches, Split
from pyro_fmvae.learn.fitting import Progress, fit
from pyro_fmvae.learn.gradient_em import GradientEM
from pyro_fmvae.learn.options import BSCOptions
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.learn.stepwise_em import STEPWISE, StepwiseEM
from pyro_fmvae.models.binary_sparse_coding import BinarySparseCoding
from pyro_fmvae.models.em.binary_em import BinaryEM
from pyro_fmvae.models.em.expectation_maximization import Expectation, ExpectationMaximization, Maximum
from pyro_fmvae.models.em.statistics import Statistics

SIZE = 12


class Parameters(NamedTuple):
    """Of x ~ N(mean, variance): no latents, so that the M-step alone is the answer."""

    mean: torch.Tensor  # [R, D]
    variance: torch.Tensor  # [R]


class MeanEM(ExpectationMaximization[Parameters]):
    """Start r believes in means that are r + 1 times the data's; what it is called with is written down."""

    def __init__(self):
        self.calls, self.checked, self.reseeded = [], [], []

    def start(self, x, starts):
        return Parameters(torch.zeros(starts, x.shape[1]), torch.ones(starts))

    def start_latents(self, parameters, num_data):
        return torch.zeros(len(parameters.mean), num_data, 1)

    def e_step(self, x, parameters, latents, temperature=1.0):
        self.calls.append((len(x), temperature, latents.clone()))
        factors = torch.arange(1.0, len(latents) + 1)[:, None]
        squares = x.square().sum().expand(len(latents))
        statistics = Statistics({"sum": factors * x.sum(0), "squares": squares}, len(x))
        error = (x - parameters.mean.unsqueeze(1)).square().sum((1, 2)) / len(x)
        return Expectation(latents + 1, statistics, -error)

    def m_step(self, statistics, parameters, x=None, found=None):
        self.checked.append(x is not None)
        mean = statistics.values["sum"] / statistics.count
        rest = statistics.values["squares"] / statistics.count - mean.square().sum(1)
        unit = torch.full((len(mean), 1), 2.0)
        return Maximum(Parameters(mean, rest), statistics, unit)

    def quality(self, parameters, objective):
        return objective

    def noise(self, parameters):
        return parameters.variance.clamp(min=0).sqrt()

    def reseed(self, x, parameters, found):
        self.reseeded.append(len(self.calls))
        return parameters._replace(mean=parameters.mean + 100)


class Model(torch.nn.Module):
    num_data = SIZE

    def __init__(self):
        super().__init__()
        self.parameters_taken = []
        self.mean = torch.zeros(3)

    def given(self):
        return Parameters(self.mean[None] + 5, torch.ones(1))

    def take(self, parameters, start):
        self.start, self.mean = start, parameters.mean[start].clone()


def phase(iterations=8, annealed=0.6, reseeded=0.7, **options):
    made = StepwiseEM(Model(), MeanEM(), Budget(iterations=iterations), **options)
    made.annealed, made.reseeded = annealed, reseeded
    return made


def loader(batch_size):
    x = torch.rand(SIZE, 3, dtype=torch.float32, generator=torch.Generator().manual_seed(0)) + 1
    return Batches(Split(x), batch_size, indexed=True)


def run(learnt, batch_size):
    return [record.loss for record in fit([learnt], loader(batch_size))]


def test_all_data_in_a_batch_is_em_itself():
    learnt = phase(3, starts=2)
    batches = loader(SIZE)
    losses = [record.loss for record in fit([learnt], batches)]
    x = torch.cat([x for x, _ in batches])
    assert learnt.best == 0  # the start that has the data's own mean
    assert learnt.model.mean.numpy() == pytest.approx(x.mean(0).numpy(), rel=1e-6)
    assert learnt.parameters.mean[1].numpy() == pytest.approx(2 * x.mean(0).numpy(), rel=1e-6)
    assert learnt.em.checked == [True] * 3
    assert losses[-1] == pytest.approx(SIZE * x.var(0, correction=0).sum().item(), rel=1e-6)


def test_batches_are_blended_step_by_step():
    learnt, batches = phase(7), loader(4)
    records = fit([learnt], batches)
    sums, steps = None, 0
    seen = Batches(batches_split(), 4, indexed=True)
    source = (batch for _ in range(9) for batch in seen)
    next(source)  # what the start was taken from
    for record in records:
        if record.step:
            x, _ = next(source)
            new = x.sum(0) * SIZE / len(x)
            rate = 1.0 if sums is None else STEPWISE(steps)
            sums = new if sums is None else (1 - rate) * sums + rate * new
            steps += 1
            assert learnt.parameters.mean[0].numpy() == pytest.approx((sums / SIZE).numpy(), rel=1e-5)
    assert steps == 7
    assert learnt.em.checked == [False] * 7


def batches_split():
    return Split(torch.rand(SIZE, 3, dtype=torch.float32, generator=torch.Generator().manual_seed(0)) + 1)


def test_points_keep_their_latents_in_the_present_units():
    """A visit adds 1; every step doubles the unit."""
    learnt, expected = phase(7), torch.zeros(SIZE)
    seen = Batches(batches_split(), 4, indexed=True)
    source = (rows for _ in range(9) for _, rows in seen)
    next(source)  # what the start was taken from
    for record in fit([learnt], loader(4)):
        if record.step:
            expected[next(source)] += 1
            expected *= 2
            assert learnt.latents[0, :, 0].tolist() == expected.tolist()


def test_temperature_falls_linearly_to_one():
    learnt = phase(10, temperature=3.0, annealed=0.5)
    run(learnt, SIZE)
    found = [temperature for _, temperature, _ in learnt.em.calls]
    assert found == pytest.approx([3.0, 2.6, 2.2, 1.8, 1.4, 1, 1, 1, 1, 1])


def test_units_are_moved_in_the_first_part_only():
    learnt = phase(20, reseed_every=3, reseeded=0.5)
    run(learnt, SIZE)
    assert learnt.em.reseeded == [3, 6, 9]
    assert learnt.statistics is not None


def test_statistics_start_anew_where_a_unit_was_moved():
    learnt, batches = phase(6, reseed_every=2, reseeded=1.0, rate=lambda _: 1e-9), loader(4)
    means, moved = [], []
    for record in fit([learnt], batches):
        if record.step:
            means.append(learnt.model.mean.clone())
            moved.append((learnt.parameters.mean[0] - learnt.model.mean).tolist())
    assert moved == [pytest.approx([100.0 if step % 2 else 0.0] * 3) for step in range(6)]
    seen = Batches(batches_split(), 4, indexed=True)
    _, *own = (x.mean(0) for _ in range(3) for x, _ in seen)  # the first is what the start was taken from
    for step in (0, 2, 4):
        assert means[step].numpy() == pytest.approx(own[step].numpy(), rel=1e-6)


def test_the_best_before_a_unit_was_moved_is_kept_until_there_is_a_better_one():
    """A moved start is far from the data: it takes two steps until its objective is that of before."""
    learnt, taken, losses, present = phase(12, starts=2, reseed_every=3, reseeded=1.0), [], [], []
    for record in fit([learnt], loader(SIZE)):
        if record.step:
            losses.append(record.loss)
            taken.append(learnt.model.mean.tolist())
            present.append(-SIZE * learnt.objective.max().item())
    assert all(after <= before + 1e-9 for before, after in pairwise(losses))
    assert present[3] > losses[2] + 1000
    assert losses[3] == losses[2]
    assert taken[3] == taken[2] == pytest.approx(taken[-1])


def test_nothing_is_kept_of_batches_that_are_not_all_data():
    learnt = phase(6, reseed_every=2, reseeded=1.0)
    run(learnt, 4)
    assert learnt.em.reseeded and learnt.kept is None


def test_goes_on_from_the_models_own_parameters():
    learnt = phase(1, starts=0)
    learnt.enter()
    learnt.prepare(loader(SIZE))
    assert learnt.parameters.mean.tolist() == [[5.0] * 3]


def test_the_models_own_parameters_are_taken_over_as_numbers():
    model = BinarySparseCoding((3,), SIZE, BinaryEM(2)).float()
    learnt = StepwiseEM(model, model.em, Budget(iterations=2), starts=0)
    learnt.enter()
    learnt.prepare(loader(SIZE))
    weight = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    assert learnt.parameters.weight[0].equal(weight)
    learnt.step(*next(iter(loader(SIZE))))
    assert not any(value.requires_grad for value in (*learnt.parameters, learnt.latents))


@pytest.mark.parametrize("by_gradients", [False, True])
def test_weights_may_be_less_precise_than_data(by_gradients):
    model, budget = BinarySparseCoding((3,), SIZE, BinaryEM(2)).float(), Budget(iterations=3)
    if by_gradients:
        learnt = GradientEM(model, BSCOptions(), budget)
    else:
        learnt = StepwiseEM(model, model.em, budget, starts=0, reseed_every=1)
    list(fit([learnt], [(torch.randn(SIZE, 3), torch.arange(SIZE))]))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert learnt.latents.dtype == torch.float32


def test_measures():
    learnt = phase(2, starts=2)
    learnt.enter()
    assert learnt.measures() == {}
    run(learnt, SIZE)
    found = learnt.measures()
    assert found["start"] == 0
    assert len(found["objective"]) == len(found["noise"]) == 2
    assert found["objective"][0] > found["objective"][1]


@pytest.mark.parametrize(
    ("size", "options"), [(5, {"temperature": 2.0}), (SIZE, {"reseed_every": 3, "reseeded": 0.4})]
)
def test_resumed_to_the_bit(size, options):
    whole, batches = phase(9, starts=2, **options), loader(size)
    list(fit([whole], batches))
    first, progress, batches = phase(9, starts=2, **options), Progress(), loader(size)
    for record in fit([first], batches, progress):
        if record.step == 4:
            break
    state, position = first.state_dict(), batches.state_dict()
    second, batches = phase(9, starts=2, **options), loader(size)
    second.enter()
    second.load_state_dict(state)
    batches.load_state_dict(position)
    list(fit([second], batches, progress, resumed=True))
    assert torch.equal(second.model.mean, whole.model.mean)
    assert torch.equal(second.latents, whole.latents)
    assert second.measures() == whole.measures()
    assert repr(second.kept) == repr(whole.kept)  # from before the interruption
    assert (whole.kept is not None) == ("reseed_every" in options)


def test_what_is_resumed_is_where_the_model_is():
    first = phase(9, starts=2, reseed_every=4, reseeded=1.0)
    run(first, SIZE)
    state = first.state_dict()
    second = phase(9, starts=2)
    second.enter()
    second.model.mean = second.model.mean.to("meta")  # for want of a GPU
    second.load_state_dict(state)
    tensors = [*second.parameters, second.latents, second.objective, *second.statistics.values.values()]
    assert {tensor.device.type for tensor in [*tensors, *second.kept[0], second.kept[1]]} == {"meta"}
    assert second.steps == 9


def test_a_state_stays_what_it_was():
    learnt = phase(9)
    for record in fit([learnt], loader(5)):
        if record.step == 4:
            state = learnt.state_dict()
            before = copy.deepcopy(state)
    assert not torch.equal(learnt.latents, before["latents"])
    assert torch.equal(state["latents"], before["latents"])
    assert all(map(torch.equal, state["parameters"], before["parameters"]))
    again = phase(9)
    again.enter()
    again.load_state_dict(state)
    again.step(*next(iter(loader(SIZE))))
    assert torch.equal(state["latents"], before["latents"])


def test_wrong_batches():
    learnt = phase()
    with pytest.raises(ValueError, match="batches: expected 12 data points, got 11"):
        list(fit([learnt], Batches(batches_split().select(torch.arange(11)), 4, indexed=True)))
    with pytest.raises(ValueError, match="batch: expected the indices of its rows last"):
        list(fit([learnt], Batches(batches_split(), 4)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((2.0, 2.0), "expected numbers that differ"),
        ((torch.nan, torch.nan), "expected numbers that differ"),
        ((2.0, torch.nan), "expected numbers that differ"),
        ((0.0, 1e-14), "expected numbers 1e-13 apart at least, got 1e-14 at most"),
        ((0.0, 1e17), r"expected squares that add up to 3.4e\+32 at most, got numbers up to 1e\+17"),
        ((0.0, torch.inf), "expected squares .* at most, got numbers up to inf"),
    ],
)
def test_data_without_anything_to_learn(values, message):
    x = torch.full((SIZE, 3), values[0], dtype=torch.float32)
    x[0] = values[1]
    with pytest.raises(ValueError, match=f"data: {message}"):
        list(fit([phase()], Batches(Split(x), SIZE, indexed=True)))


def test_bounds_are_compared_once_the_temperature_is_one():
    learnt = phase(10, temperature=3.0, annealed=0.5)
    comparable = []
    for fraction in (0.0, 0.4, 0.5):
        learnt.before_step(fraction)
        comparable.append(learnt.comparable)
    assert comparable == [False, False, True]
