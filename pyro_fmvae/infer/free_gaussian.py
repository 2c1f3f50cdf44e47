"""A Gaussian of its own for every data point: the E-step of variational EM, before there are encoders.

q_i(z) = N(m_i, diag(s_i²)) with free m_i and s_i costs 2J numbers for each point, knows nothing of points
that it was not fitted to, and is the best of all factorised Gaussians: no encoder's bound is higher.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pyro_fmvae.infer.elbo import TraceConjugate_ELBO, sum_terms

BETAS, EPSILON = (0.9, 0.99), 1e-8  # Adam's; a few steps from nothing need a short memory
START = 0.1  # deviation of locations that nothing is known of

Arguments: TypeAlias = tuple[Any, Any]
"""Positional and keyword arguments of a program."""
Step: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From the state [3, 2, B, J] and the two numbers of :meth:`FreeGaussian._sizes` to the next state."""


class FreeGaussian:
    """Finds the q_i(z) = N(m_i, diag(s_i²)) of each point of a batch that maximises its bound.

    Gradient steps on m_i and log s_i alone, with reparameterised draws, and KL divergences in closed form
    where ``TraceConjugate_ELBO`` knows them. Adam starts afresh in every call, its learning rate falls
    linearly to nothing. All parameters of the program are constants: neither they nor their gradients change,
    and nothing goes into Pyro's parameter store or to handlers around a call, which may be under
    ``torch.inference_mode()``. Draws come from torch's generator.

    Every step runs the program under Pyro's handlers; ``pyro_fmvae.capture.CapturedFreeGaussian`` takes the
    same steps many times faster.

    Args:
        program: with ``model(x, ...)`` and ``guide(x, ..., posterior=(loc, scale))``, such as a ``VAE`` or a
            ``FactorialMixtureVAE``.
        steps: gradient steps of a call, >= 1.
        learning_rate: Adam's at the first step, > 0; may be set between calls.
        autocast: ``torch.bfloat16`` to run the networks in it: see ``ConjugateSVI``.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self,
        program: Any,
        steps: int,
        learning_rate: float,
        *,
        autocast: torch.dtype | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps: expected a number >= 1, got {steps}")
        if not 0 < learning_rate < float("inf"):
            raise ValueError(f"learning_rate: expected a number > 0, got {learning_rate}")
        self.program, self.steps, self.learning_rate = program, steps, learning_rate
        self.autocast = autocast
        self.elbo = TraceConjugate_ELBO()

    def __call__(self, x: Tensor, loc: Tensor, scale: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """Take the steps.

        Args:
            x: a batch ``[B, *event_shape]``.
            loc, scale: m_i and s_i > 0 to start from, [B, J].
            options: further arguments of model and guide.

        Returns:
            m_i and s_i, [B, J], without gradients.

        Raises:
            ValueError: shapes that don't fit, or (with validation on) numbers that have left all bounds.
        """
        if loc.dim() != 2 or loc.shape != scale.shape or len(loc) != len(x):
            shapes = f"{list(loc.shape)} and {list(scale.shape)}"
            raise ValueError(f"loc, scale: expected the same shape [{len(x)}, J], got {shapes}")
        with torch.inference_mode(False), torch.no_grad(), poutine.block():
            arguments = tree_map_only(Tensor, _usable, ((x,), options))
            free = torch.stack([loc, scale.log()])
            state = torch.stack([free, torch.zeros_like(free), torch.zeros_like(free)])
            step = self._step_for(arguments, state)
            for sizes in self._sizes().to(state).unbind():
                state = step(state, sizes)
            loc, log_scale = state[0].clone().unbind()
            scale = log_scale.exp()
        if is_validation_enabled() and not (loc.isfinite() & log_scale.isfinite()).all():
            raise ValueError(
                f"loc, scale: not finite after {self.steps} steps; expected finite ones to start from, and a "
                f"learning rate below {self.learning_rate}"
            )
        return loc, scale

    def _sizes(self) -> Tensor:
        """For every step Adam's step size, and the divisor of its second moment: [steps, 2]."""
        number = torch.arange(self.steps, dtype=torch.float64)
        first, second = (1 - beta ** (number + 1) for beta in BETAS)
        return torch.stack([self.learning_rate * (1 - number / self.steps) / first, second], -1)

    def _step_for(self, arguments: Arguments, state: Tensor) -> Step:
        """The function that takes a step with such arguments, from a state of this shape and type."""
        return partial(self._step, arguments)

    def _step(self, arguments: Arguments, state: Tensor, sizes: Tensor) -> Tensor:
        """One step of Adam on [m, log s] and its two moments, [3, 2, B, J]."""
        free, first, second = state.unbind()
        slope = self._slope(arguments, free)
        first, second = first.lerp(slope, 1 - BETAS[0]), second.lerp(slope.square(), 1 - BETAS[1])
        spread = (second / sizes[1]).sqrt() + EPSILON
        return torch.stack([free - sizes[0] * first / spread, first, second])

    def _slope(self, arguments: Arguments, free: Tensor) -> Tensor:
        """The gradient of the loss with respect to m and log s."""
        args, kwargs = arguments
        device = free.device.type
        autocast = torch.autocast(device, self.autocast) if self.autocast else nullcontext()
        with torch.enable_grad(), autocast:
            free = free.detach().requires_grad_()
            loc, log_scale = free.unbind()
            guide = partial(self.program.guide, posterior=(loc, log_scale.exp()))
            loss = sum_terms(self.elbo.terms(self.program.model, guide, *args, **kwargs))
            (slope,) = torch.autograd.grad(loss, free)
        return slope


def _usable(tensor: Tensor) -> Tensor:
    """A tensor that gradients can be computed with."""
    return tensor.clone() if tensor.is_inference() else tensor


def near_prior(size: int, dim: int) -> tuple[Tensor, Tensor]:
    """Where to start if nothing is known of q(z): m of about 0, s = 1, each [size, dim].

    Not m = 0: there, rectified units without biases (a decoder before it has learnt anything) have no
    gradient, and if q is a point no draw leads away from it.
    """
    return START * torch.randn(size, dim), torch.ones(size, dim)


class GaussianTable(nn.Module):
    """The m_i and s_i of all N data points, stored between visits; before the first one :func:`near_prior`.

    Args:
        num_data: N.
        dim: J.

    Attributes:
        loc, scale: [N, J], buffers.
    """

    def __init__(self, num_data: int, dim: int) -> None:
        super().__init__()
        loc, scale = near_prior(num_data, dim)
        self.loc: Tensor
        self.scale: Tensor
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Means and scales of some points, rows int64 [B]: each [B, J]."""
        return self.loc[rows], self.scale[rows]

    def keep(self, rows: Tensor, loc: Tensor, scale: Tensor) -> None:
        """Replace means and scales of some points, rows int64 [B]: each [B, J]."""
        self.loc[rows], self.scale[rows] = loc, scale
