from dataclasses import replace

import pytest
import torch

from finitegp import DataError, FeatureStatistics
from finitegp.statistics import sum_statistics


def make(generator, rows=50, width=6, targets=2, scales=True):
    features = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    values = torch.randn(rows, targets, generator=generator, dtype=torch.float64)
    log_scale = torch.randn(rows, generator=generator, dtype=torch.float64) if scales else None
    return features, values, log_scale


def part(data, index):
    features, values, log_scale = data
    return FeatureStatistics.from_batch(features[index], values[index], None if log_scale is None else log_scale[index])


def assert_same(left, right, rtol=1e-10):
    for name in ("gram", "projected_targets", "target_sum_of_squares", "log_scale_sum"):
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype == torch.float64
        scale = b.abs().max().clamp_min(1.0)
        assert float((a - b).abs().max() / scale) <= rtol, name
    assert left.num_data == right.num_data


@pytest.mark.parametrize("scales", [False, True])
def test_sums_are_what_they_say(generator, scales):
    features, values, log_scale = data = make(generator, scales=scales)
    v = torch.ones(50, dtype=torch.float64) if log_scale is None else log_scale.exp()
    found = part(data, slice(None))
    expected = FeatureStatistics(
        gram=sum(torch.outer(z, z) / s for z, s in zip(features, v, strict=True)),
        projected_targets=sum(torch.outer(z, y) / s for z, y, s in zip(features, values, v, strict=True)),
        target_sum_of_squares=(values.square() / v[:, None]).sum(dim=0),
        log_scale_sum=v.log().sum(),
        num_data=50.0,
    )
    assert_same(found, expected)


@pytest.mark.parametrize("chunk", [1, 3, 7, 50, 1000])
def test_any_chunking_and_any_order(generator, chunk):
    data = make(generator)
    whole = part(data, slice(None))
    order = torch.randperm(50, generator=generator)
    pieces = [part(data, order[i : i + chunk]) for i in range(0, 50, chunk)]
    assert_same(sum(pieces), whole)
    assert_same(sum_statistics(iter(pieces)), whole)
    assert_same(sum(reversed(pieces)), whole)


def test_merge_subtract_and_scale(generator):
    data = make(generator)
    whole, head, tail = part(data, slice(None)), part(data, slice(0, 20)), part(data, slice(20, None))
    assert_same(head + tail, tail + head)
    assert_same(whole - tail, head)
    assert_same(head * 2.0, head + head)
    assert_same(2.0 * head, head + head)
    assert_same(head + FeatureStatistics.zeros(6, 2), head)


def test_sums_do_not_write_into_their_parts(generator):
    data = make(generator)
    head, tail = part(data, slice(0, 20)), part(data, slice(20, None))
    before = head.clone()
    sum_statistics([head, tail])
    _ = head + tail, head - head, head * 3.0
    assert_same(head, before, rtol=0.0)


def test_several_targets_equal_single_ones(generator):
    features, values, log_scale = data = make(generator)
    both = part(data, slice(None))
    for column in range(2):
        single = FeatureStatistics.from_batch(features, values[:, column], log_scale)
        selected = replace(
            both,
            projected_targets=both.projected_targets[:, [column]],
            target_sum_of_squares=both.target_sum_of_squares[[column]],
        )
        assert_same(selected, single)


@pytest.mark.parametrize("rows", [0, 1, 511, 512, 513, 2000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_float64_sums_of_any_float_type(generator, rows, dtype):
    features = torch.randn(rows, 5, generator=generator).to(dtype)
    found = FeatureStatistics.from_batch(features, torch.ones(rows))
    exact = features.double()
    assert found.gram.dtype == torch.float64
    torch.testing.assert_close(found.gram, exact.T @ exact, rtol=1e-13, atol=1e-10)
    assert torch.equal(found.gram, found.gram.T)


def test_non_contiguous_features(generator):
    features = torch.randn(8, 30, generator=generator, dtype=torch.float64).T[::2]
    found = FeatureStatistics.from_batch(features, torch.ones(15))
    torch.testing.assert_close(found.gram, features.T @ features)


def test_bad_batches_are_named():
    with pytest.raises(DataError, match=r"features must be \(rows, features\)"):
        FeatureStatistics.from_batch(torch.ones(3), torch.ones(3))
    with pytest.raises(DataError, match=r"one row per row of features \(3\)"):
        FeatureStatistics.from_batch(torch.ones(3, 2), torch.ones(4))
    with pytest.raises(DataError, match="log_noise_scale must be one number per row"):
        FeatureStatistics.from_batch(torch.ones(3, 2), torch.ones(3), torch.ones(3, 1))
    bad = torch.ones(3, 2)
    bad[1, 0] = float("nan")
    with pytest.raises(DataError, match=r"features must be finite, but row 1, column 0 .* nan"):
        FeatureStatistics.from_batch(bad, torch.ones(3))
    with pytest.raises(DataError, match="overflow"):
        FeatureStatistics.from_batch(torch.full((3, 2), 1e200, dtype=torch.float64), torch.ones(3))
    with pytest.raises(DataError, match="2 features and 1 targets cannot be combined"):
        FeatureStatistics.zeros(2) + FeatureStatistics.zeros(3)
    with pytest.raises(DataError, match="Cannot subtract statistics of 3 rows"):
        FeatureStatistics.zeros(2) - FeatureStatistics.from_batch(torch.ones(3, 2), torch.ones(3))
    with pytest.raises(DataError, match="no rows"):
        sum_statistics([])
    with pytest.raises(TypeError):
        FeatureStatistics.zeros(2) + 1
