import pytest
import torch

from pyro_fmvae.evaluate.edits import Normals, component_normals, edit_latent, to_location, transport
from tests.evaluate.exact import VARIANCE, exact_model, images, random_codes
from tests.models.small import binary_data, posterior_of, small_model


@pytest.mark.parametrize("standard", [False, True])
def test_components_are_the_posterior_at_its_means(standard):
    model = small_model((3, 2, 3), labelled=(1,))
    expected = [posterior_of(model, factor)[1:] for factor in range(3)]
    for group in model.factor_groups() if standard else ():
        group.use_standard()
    for factor, (m, _, a, b) in enumerate(expected):
        normals = component_normals(model, factor)
        torch.testing.assert_close(normals.loc, m)
        torch.testing.assert_close(normals.variance, b / a.unsqueeze(-1))


def test_to_location_and_transport_of_a_known_point():
    old, new = (
        Normals(torch.tensor([[1.0]]), torch.tensor([[4.0]])),
        Normals(torch.tensor([[10.0]]), torch.tensor([[9.0]])),
    )
    assert to_location(torch.tensor([[3.0]]), old, new).item() == 10.0
    assert transport(torch.tensor([[3.0]]), old, new).item() == 13.0  # one deviation above, before and after


def test_transport_keeps_standardised_residuals_and_goes_back():
    model, x = small_model((3, 2), labelled=(0,)), binary_data(7)
    z, codes = model.encoder(x)[0].detach(), model.codes(x)
    target = (codes[:, 0] + 1) % 3
    there = edit_latent(model, z, {0: target}, codes)
    normals = component_normals(model, 0)

    def residual(point, components):
        return (point[:, : model.dim] - normals.loc[components]) / normals.variance[components].sqrt()

    torch.testing.assert_close(residual(there, target), residual(z, codes[:, 0]))
    edited = codes.clone()
    edited[:, 0] = target
    torch.testing.assert_close(edit_latent(model, there, {0: codes[:, 0]}, edited), z)


@pytest.mark.parametrize("placement", [to_location, transport])
def test_only_the_blocks_of_changed_factors_are_touched(placement):
    model = exact_model()
    codes = random_codes(20)
    _, z = images(codes)
    before = z.clone()
    edited = edit_latent(model, z, {1: 0, 2: (codes[:, 2] + 1) % 2}, codes, placement)
    assert torch.equal(z, before)
    assert torch.equal(edited[:, 0], z[:, 0])
    near = 0.1 * 2**0.5 + 1e-9  # the deviations of the components are as 1 to √2
    assert ((edited[:, 1] - 0).abs() <= near).all()
    assert ((edited[:, 2] - (codes[:, 2] + 1) % 2).abs() <= near).all()
    if placement is to_location:
        assert torch.equal(edited[:, 1], torch.zeros(20))
    assert component_normals(model, 2).variance.squeeze().tolist() == pytest.approx([VARIANCE, 2 * VARIANCE])


@pytest.mark.parametrize("placement", [to_location, transport])
def test_a_change_to_the_same_component(placement):
    model, codes = exact_model(), random_codes(5)
    _, z = images(codes)
    edited = edit_latent(model, z, {0: codes[:, 0]}, codes, placement)
    expected = codes[:, 0].to(z) if placement is to_location else z[:, 0]
    torch.testing.assert_close(edited[:, 0], expected)


@pytest.mark.parametrize(
    ("changes", "width", "message"),
    [
        ({3: 0}, 3, r"^factor: expected one of 0..2, got 3"),
        ({0: 3}, 3, r"^changes: expected components 0..2 of factor 0"),
        ({1: -1}, 3, r"^changes: expected components 0..1 of factor 1"),
        ({}, 2, r"^z: expected \[n, 3\], got \[4, 2\]"),
        ({0: 1.0}, 3, r"^changes\[0\]: expected int64 \[\], got torch.float"),
        ({0: torch.tensor([0, 1, 2])}, 3, r"^changes\[0\]: expected int64 \[4\], got torch.int64 \[3\]"),
        ({0: torch.zeros(4)}, 3, r"^changes\[0\]: expected int64 \[4\], got torch.float32 \[4\]"),
    ],
)
def test_wrong_edits(changes, width, message):
    with pytest.raises(ValueError, match=message):
        edit_latent(exact_model(), torch.zeros(4, width), changes, torch.zeros(4, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(4, 2).long(), r"expected int64 \[4, 3\], got torch.int64 \[4, 2\]"),
        (torch.full((4, 3), -1), "expected the components that z has, got -1"),
        (torch.tensor([[0, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 0]]), "expected -1 to 1 of factor 1, got 2"),
        (torch.full((4, 3), 0.5), "expected int64"),
    ],
)
def test_wrong_codes(codes, message):
    with pytest.raises(ValueError, match=f"^codes: {message}"):
        edit_latent(exact_model(), torch.zeros(4, 3), {0: 1}, codes)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_components_are_integers_of_any_size(kind):
    model, z = small_model((3, 2)), torch.randn(4, 4)
    codes, wanted = torch.tensor([[0, 1], [1, 0], [2, 0], [0, 0]]), torch.tensor([2, 0, 1, 1])
    expected = edit_latent(model, z, {0: wanted}, codes, transport)
    assert torch.equal(edit_latent(model, z, {0: wanted.to(kind)}, codes.to(kind), transport), expected)
