"""One small interface for exponential families in minimal natural parameters, and the two backward rules.

A density of the family is ``log p(θ) = λ·t(θ) - A(λ) + log h(θ)``, with natural parameters λ, statistics t
and log-normaliser A. Families pack λ, and E[t] with it, into the last dimension of one float64 tensor, in
the same order.

What makes an optimiser over λ trivial is that the gradients which arrive at λ already are *natural*
gradients (the ordinary gradient times the inverse Fisher matrix). Two rules give them without ever forming
that matrix:

* a closed form is a function of the expected statistics, and ``∂f/∂E[t]`` *is* the natural gradient of f
  with respect to λ, because the Fisher matrix is ``∂E[t]/∂λ``. So :meth:`ExponentialFamily.expected_stats`
  passes the gradient through unchanged, and :meth:`ExponentialFamily.kl`, whose natural gradient is ``λ -
  λ₀``, says just that;
* a draw is a function of the standard parameters, so :meth:`ExponentialFamily.standard` applies the inverse
  Fisher matrix to the gradient, in closed form.

See Hoffman et al. (2013), Stochastic variational inference, Section 2, and Paquet et al. (2018), equations 7
and 12-14.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode


def blend(old: Tensor, new: Tensor, rate: float) -> Tensor:
    """(1 - ρ) old + ρ new: one step of natural gradients, and of stepwise EM.

    Natural parameters move so towards the conjugate posterior λ* of a batch that stands for all data, and
    sufficient statistics towards those of the batch: the first is the second plus the prior's parameters.

    Args:
        old, new: of the same shape.
        rate: ρ in [0, 1]; with 1 the result is ``new`` to the bit.
    """
    return torch.lerp(old, new, rate)


class ExponentialFamily(ABC):
    """An exponential family; stateless, so that one instance serves every distribution of the family."""

    @abstractmethod
    def natural(self, *standard: Tensor) -> Tensor:
        """Pack standard parameters into natural ones, shape [..., P]."""

    @abstractmethod
    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """Natural parameters [..., P] to standard ones, differentiated as it stands."""

    @abstractmethod
    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ), shape [...]; its gradient is E[t]."""

    @abstractmethod
    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = ∇A(λ), packed like λ, differentiated as it stands."""

    @abstractmethod
    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL(λ || λ₀) [...], written so that nothing cancels, differentiated as it stands.

        Args:
            natural: λ, [..., P].
            prior: λ₀, [..., P] or broadcastable to that.
            stats: E[t] at λ if it is known already, [..., P].
        """

    @abstractmethod
    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """Natural gradient [..., P] from the gradients with respect to the standard parameters."""

    @abstractmethod
    def in_domain(self, natural: Tensor) -> Tensor:
        """Whether each λ [..., P] is a proper member of the family, bool [...]."""

    def expected_stats(self, natural: Tensor) -> Tensor:
        """E[t] [..., P], whose backward delivers natural gradients to λ."""
        return _ExpectedStats.apply(natural, self)

    def standard(self, natural: Tensor) -> tuple[Tensor, ...]:
        """Standard parameters, whose backward delivers natural gradients to λ."""
        if torch.is_inference_mode_enabled():  # even where ``lazy_property`` has enabled gradients
            return self.unpack(natural)
        return _Standard.apply(natural, self)

    def kl(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL(λ || λ₀) [...], whose backward delivers λ - λ₀ to λ, and the ordinary gradient to λ₀.

        Args:
            natural: λ, [..., P].
            prior: λ₀, [..., P] or broadcastable to that.
            stats: E[t] at λ if it is known already, [..., P].
        """
        return _RelativeEntropy.apply(natural, prior, None if stats is None else stats.detach(), self)


class InNaturalParameters:
    """What distributions of a family share that are given by natural parameters."""

    family: ExponentialFamily
    natural: Tensor
    _known_stats: tuple[Any, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_known_stats"}

    def expected_stats(self) -> Tensor:
        """E[t] in float64, with natural gradients: [..., P] with the batch shape of ``natural``.

        It is computed once for as long as λ stays what it is (and anew for whoever records operations).
        """
        natural = self.natural
        if torch.is_inference_mode_enabled() or natural.is_inference():
            return self.family.expected_stats(natural)
        graded = torch.is_grad_enabled() and natural.requires_grad
        key = (natural._version, graded, _get_current_dispatch_mode())
        if self._known_stats is None or self._known_stats[0] != key:
            self._known_stats = (key, self.family.expected_stats(natural))
        return self._known_stats[1]


class _ExpectedStats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, natural: Tensor, family: ExponentialFamily) -> Tensor:
        return family.mean_stats(natural)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Standard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, natural: Tensor, family: ExponentialFamily) -> tuple[Tensor, ...]:
        standard = tuple(parameter.clone() for parameter in family.unpack(natural))
        ctx.save_for_backward(*standard)
        ctx.family = family
        return standard

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.family.inverse_fisher(ctx.saved_tensors, grads), None


class _RelativeEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, natural: Tensor, prior: Tensor, stats: Tensor | None, family: ExponentialFamily
    ) -> Tensor:
        stats = family.mean_stats(natural) if stats is None else stats
        ctx.save_for_backward(natural, prior, stats)
        ctx.family = family
        return family.relative_entropy(natural, prior, stats)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        natural, prior, stats = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        to_prior = None
        if ctx.needs_input_grad[1]:
            to_prior = (grad * (ctx.family.mean_stats(prior) - stats)).sum_to_size(prior.shape)
        return (natural - prior).mul_(grad).sum_to_size(natural.shape), to_prior, None, None


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: Tensor | float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scale_gradient(tensor: Tensor, factor: Tensor | float) -> Tensor:
    """The same values, whose gradient is multiplied by ``factor`` on the way back.

    Args:
        tensor: of any shape.
        factor: a number or a tensor. Where the tensor lacks its dimensions it is expanded to them, so that
            each part of the gradient is multiplied by its own factor before they are added up.
    """
    if isinstance(factor, Tensor):
        tensor = tensor.expand(torch.broadcast_shapes(tensor.shape, factor.shape))
    return _ScaleGradient.apply(tensor, factor)


def to_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its own device has no float64 (Apple's)."""
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


def check_natural(natural: Tensor) -> None:
    """Refuse natural parameters that lost their digits, say by ``module.float()``.

    Raises:
        ValueError: ``natural`` is not float64.
    """
    if natural.dtype != torch.float64:
        raise ValueError(f"natural: expected float64 (a NaturalParameter is), got {natural.dtype}")


class NaturalParameter(torch.nn.Parameter):
    """Natural parameters, recognised by type: also after a copy or loading of a state.

    Args:
        data: natural parameters [..., P] of some :class:`ExponentialFamily`, copied and converted to float64
            (why: see :class:`NormalGammaFamily`).
        requires_grad: as in :class:`torch.nn.Parameter`.
    """

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> "NaturalParameter":
        with torch.inference_mode(False):  # what is made in inference mode could never be trained
            return super().__new__(cls, data.detach().to(torch.float64, copy=True), requires_grad)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy as this class; torch's own rule would give a plain ``Parameter``."""
        return NaturalParameter, (self.data, self.requires_grad)
