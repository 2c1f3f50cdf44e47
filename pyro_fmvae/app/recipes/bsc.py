"""The recipe of binary sparse coding (Henniges et al., 2010)."""

from dataclasses import replace
from typing import Any

from pyro_fmvae.app.recipes.coders import CoderRecipe, is_whole
from pyro_fmvae.app.recipes.settings import budgets_of
from pyro_fmvae.data import Dataset
from pyro_fmvae.data.sets.bars import NAMES
from pyro_fmvae.learn.gradient_em import GradientEM
from pyro_fmvae.learn.options import BSCOptions, refuse
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.learn.stepwise_em import StepwiseEM
from pyro_fmvae.models import BinarySparseCoding
from pyro_fmvae.models.em.binary_em import BinaryEM


class BSC(CoderRecipe[BSCOptions]):
    """z is binary; units add up."""

    name = "bsc"
    title = "binary sparse coding"
    options = BSCOptions
    bars = "bars-binary"

    @classmethod
    def defaults_for(cls, config: BSCOptions, dataset: Dataset) -> dict[str, Any]:
        """Several starts and a search where a batch holds all data; gradients go on from a single start."""
        full, gradient = is_whole(config, dataset), config.m_step == "gradient"
        return super().defaults_for(config, dataset) | {
            "joint_iterations": 3000 if gradient else 80 if full else cls._epochs(config, dataset),
            "starts": 5 if full and not gradient else 1,
            "sweeps": 3,
            "temperature": 1.0,
            "nonnegative": config.data in NAMES,
            "reseed_every": 5 if full and not gradient else 0,
        }

    @classmethod
    def check(cls, config: BSCOptions, dataset: Dataset) -> BSCOptions:
        """Options have an effect on the M-steps."""
        if config.m_step == "gradient":
            refuse(config, ("em_forgetting",), "batches in closed form")
            for name, without in (("starts", 1), ("reseed_every", 0), ("temperature", 1)):
                if getattr(config, name) != without:
                    raise ValueError(f"{name}: an option of closed M-steps, not of --m-step gradient")
        return super().check(config, dataset)

    def build(self) -> BinarySparseCoding:
        """The model with its EM."""
        config = self.config
        assert config.sweeps is not None and config.nonnegative is not None
        em = BinaryEM(config.units, config.sweeps, config.group_size, config.nonnegative)
        return BinarySparseCoding(self.preprocessing.event_shape, self.num_data, em)

    def phases(self, model: BinarySparseCoding) -> list[Phase]:
        """EM, or gradients of the bound."""
        config, joint = self.config, budgets_of(self.config)["joint"]
        if not self.closed_form:
            rate = config.joint_learning_rate or config.learning_rate
            return [GradientEM(model, replace(config, learning_rate=rate), joint)]
        assert config.reseed_every is not None
        return [StepwiseEM(model, model.em, joint, **self._search(), reseed_every=config.reseed_every)]

    @property
    def closed_form(self) -> bool:
        """True unless ``m_step`` asks for gradients."""
        return self.config.m_step == "closed"
