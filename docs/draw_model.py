"""Draw the plate diagram of docs/models/model.md from the model itself.

    python docs/draw_model.py

Needs the ``graphviz`` package of Python and the ``dot`` program (``apt-get install graphviz`` and
``pip install graphviz``). The picture is kept in the repository, so building the documentation needs neither.
"""

from pathlib import Path

import pyro
import torch

from pyro_fmvae import BernoulliObservation, FactorialMixtureVAE
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

FACTORS, DIM, SHAPE = 2, 3, (4,)


def main() -> None:
    model = FactorialMixtureVAE(
        MLPEncoder(SHAPE, FACTORS * DIM),
        MLPDecoder(FACTORS * DIM, SHAPE),
        BernoulliObservation(event_dim=1),
        num_components=[5] * FACTORS,
        dim=DIM,
        num_data=10,
        labelled=range(FACTORS),
    )
    x, labels = torch.zeros(7, *SHAPE), torch.zeros(7, FACTORS, dtype=torch.int64)
    graph = pyro.render_model(model.model, model_args=(x, labels))
    graph.attr(bgcolor="white")
    # Keep the names of plates off the arrows.
    graph.body = [s if "components" in s else s.replace("labeljust=r", "labeljust=l") for s in graph.body]
    graph.render(Path(__file__).parent / "images" / "plates", format="svg", cleanup=True)


if __name__ == "__main__":
    main()
