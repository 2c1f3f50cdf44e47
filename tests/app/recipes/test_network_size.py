"""Networks that no memory holds are refused before they are built."""

from dataclasses import replace

import pytest
import torch

from pyro_fmvae.app.recipes.networks import COPIES, networks
from pyro_fmvae.app.recipes.registry import recipe_named
from pyro_fmvae.data import Kind, Preprocessing
from pyro_fmvae.files.memory import at_most
from tests.small_runs import train, write_files

OPTIONS = recipe_named("fmvae").options(model="fmvae", hidden=(7, 5), width=0.1, distortion=0.0)
IMAGES = Preprocessing(Kind.BINARY, (28, 28))


@pytest.mark.parametrize(("network", "own"), [("mlp", 0), ("mlp", 2), ("conv", 0)])
def test_the_size_is_that_of_the_networks(network, own):
    options = replace(OPTIONS, network=network)
    state = torch.get_rng_state()
    made = networks(options, IMAGES, 4, own=own, own_width=0.1)
    held = [*made.encoder.state_dict().values(), *made.decoder.state_dict().values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in held)
    torch.set_rng_state(state)
    with at_most(COPIES * size):
        again = networks(options, IMAGES, 4, own=own, own_width=0.1)
    first, second = (next(one.encoder.parameters()) for one in (made, again))
    assert torch.equal(first, second)  # to look at their size draws no random numbers
    with (
        at_most(COPIES * size - 1),
        pytest.raises(ValueError, match="hidden, width: the networks would take"),
    ):
        networks(options, IMAGES, 4, own=own, own_width=0.1)


@pytest.mark.parametrize("model", ["fmvae", "vae", "vsc"])
def test_a_training_is_refused_before_its_folder_is_made(tmp_path, single_precision, model):
    data, out = write_files(tmp_path)["table"], tmp_path / "run"
    status, printed, err = train(out, data, model=model, hidden="10000000,10000000")
    assert (status, printed) == (2, "") and err.count("\n") == 1
    assert "hidden, width: the networks would take" in err and "with gradients" in err
    assert not out.exists()
