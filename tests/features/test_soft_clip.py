"""``SoftClip``: the identity within the limit, a logarithm beyond, and bounds."""

import numpy as np
import pytest
import torch

from finitegp.features import SoftClip


def by_hand(values, limit, low, high):
    beyond = np.sign(values) * (limit + np.log(1.0 + np.maximum(np.abs(values) - limit, 0.0)))
    return np.clip(np.where(np.abs(values) <= limit, values, beyond), low, high)


def test_agrees_with_the_formula(generator):
    inputs = 6.0 * torch.randn(500, 3, generator=generator, dtype=torch.float64)
    low, high = np.array([-5.0, -4.5, -7.0]), np.array([4.2, 5.5, 1.0])
    clip = SoftClip(3, limit=4.0, low=low.tolist(), high=high.tolist()).double()
    # Bounds are rounded to torch's default type when the map is made.
    expected = by_hand(inputs.numpy(), 4.0, low.astype(np.float32), high.astype(np.float32))
    np.testing.assert_allclose(clip(inputs).numpy(), expected, rtol=1e-14)


def test_is_the_identity_inside_to_the_bit(generator):
    inputs = torch.rand(100, 2, generator=generator) * 8.0 - 4.0
    assert torch.equal(SoftClip(2)(inputs), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_too_far(dtype):
    inputs = torch.tensor([[-1e300], [1e300], [-1.7e308]], dtype=torch.float64).to(dtype)
    assert bool(torch.isfinite(SoftClip(1).to(dtype)(inputs)).all())


def test_pullback_is_the_derivative(generator):
    inputs = 5.0 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    clip = SoftClip(2, low=[-4.5, -9.0], high=[4.5, 9.0]).double()
    traced = inputs.clone().requires_grad_(True)
    gradient = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    clip(traced).backward(gradient)
    outputs, pullback = clip.forward_with_pullback(inputs, inputs_need_gradient=True)
    torch.testing.assert_close(outputs, clip(inputs))
    torch.testing.assert_close(pullback(gradient), traced.grad)
    assert bool((traced.grad == 0.0).any())


def test_config_and_tensors_make_it_again(generator):
    clip = SoftClip(2, limit=3.0, low=[-1.0, -2.0], high=[1.0, 2.0])
    again = SoftClip(**clip.config())
    again.load_state_dict(clip.state_dict())
    inputs = 5.0 * torch.randn(50, 2, generator=generator)
    assert torch.equal(again(inputs), clip(inputs))


@pytest.mark.parametrize("arguments", [{"limit": 0.0}, {"low": [1.0]}, {"high": [1.0, float("inf")]}])
def test_bad_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        SoftClip(2, **arguments)
