"""``FeatureGPModel`` against BoTorch's exact GP with the same kernel, which factorises all rows."""

import re
from pathlib import Path

import pytest
import torch
from export_models import kept
from torch import nn

from finitegp import DataError, FeatureGP, FourierFeatures, InputNoise, MLPFeatures
from finitegp.features import ConcatenatedFeatures, GaussLegendreFeatures, LandmarkFeatures, LinearFeatures

pytest.importorskip("botorch", reason="needs the extra 'botorch'", exc_type=ImportError)

from botorch.acquisition import (
    LogExpectedImprovement,
    qKnowledgeGradient,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.models.model import ModelList
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.utils.sampling import optimize_posterior_samples
from botorch.utils.testing import BotorchTestCase, get_random_data
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean

from finitegp.botorch import FeatureGPModel

NOISE = 0.05
BOUNDS = torch.tensor([[-1.0, 0.0], [2.0, 3.0]], dtype=torch.float64)


class FeatureKernel(Kernel):
    """The linear kernel on features, for GPyTorch's exact GP."""

    def __init__(self, feature_map):
        super().__init__()
        self.feature_map = feature_map

    def forward(self, x1, x2, diag=False, **_):
        first, second = (self.feature_map(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1) for x in (x1, x2))
        return (first * second).sum(-1) if diag else first @ second.mT


def make_map(columns=2):
    return FourierFeatures(columns, 40, kernel="matern52", length_scales=0.6).double().requires_grad_(False)


def make_rows(rows=30, outcomes=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(rows, 2, dtype=torch.float64, generator=generator)
    Y = torch.stack([torch.sin((1 + k) * X[:, 0]) + 0.3 * X[:, 1] + 5 for k in range(outcomes)], dim=-1)
    return X, Y + 0.1 * torch.randn(Y.shape, dtype=torch.float64, generator=generator)


def transforms(outcomes=1):
    return {"input_transform": Normalize(2, bounds=BOUNDS), "outcome_transform": Standardize(outcomes)}


def ours(X, Y, Yvar=None, *, scaled=True):
    return FeatureGPModel.from_rows(
        FeatureGP(make_map(), NOISE), X, Y, Yvar, **(transforms(Y.shape[-1]) if scaled else {})
    )


def exact(X, Y, Yvar=None, *, scaled=True):
    """BoTorch's exact GP of one outcome."""
    likelihood = None
    if Yvar is None:
        likelihood = GaussianLikelihood()
        likelihood.noise = NOISE
    scaling = transforms() if scaled else {"outcome_transform": None}
    peer = SingleTaskGP(
        X, Y, Yvar, covar_module=FeatureKernel(make_map()), mean_module=ZeroMean(), likelihood=likelihood, **scaling
    )
    return peer.double().eval().requires_grad_(False)


def covariance(posterior):
    return posterior.distribution.covariance_matrix


def assert_same(posterior, peer, tolerance):
    assert posterior.mean.shape == peer.mean.shape
    torch.testing.assert_close(posterior.mean, peer.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(covariance(posterior), covariance(peer), rtol=tolerance, atol=tolerance)


@pytest.fixture
def points(generator):
    return BOUNDS[0] + 3.0 * torch.rand(5, 4, 2, dtype=torch.float64, generator=generator)


def landmarks(kernel):
    places = BOUNDS[0] + 3.0 * torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return LandmarkFeatures.at(places, kernel=kernel, length_scales=[0.5, 0.8], variance=1.3)


MAPS = {
    "Fourier": make_map,
    "network": lambda: MLPFeatures(2, (16, 8), "tanh", seed=0),
    "Gauss-Legendre": lambda: GaussLegendreFeatures(2, 6, tolerance=0.3),
    "linear": lambda: LinearFeatures(2),
    "rbf on landmarks": lambda: landmarks("rbf"),
    "matern32 on landmarks": lambda: ConcatenatedFeatures(LinearFeatures(2), landmarks("matern32")),
    "a module of one's own": lambda: nn.Sequential(nn.Linear(2, 4), nn.Softplus()),
}


@pytest.mark.parametrize("kind", MAPS)
def test_every_feature_map_has_the_librarys_posterior(kind, points, tolerances):
    """Joint over points and of batches of them, with gradients, and after more rows."""
    X, Y = make_rows()
    gp = FeatureGP(MAPS[kind](), NOISE, output_scale=1.7).double()
    model = FeatureGPModel.from_rows(gp, X, Y)
    later = model.condition_on_observations(X[:3] + 0.2, Y[:3])
    fantasies = model.condition_on_observations(X[None, :3] + 0.2, Y[None, :3])
    alone = gp.condition((X, Y))
    for fitted, mine in ((alone, model), (alone.update((X[:3] + 0.2, Y[:3])), later)):
        posterior = mine.posterior(points)
        for batch, where in enumerate(points):
            expected = fitted.predict(where, return_covariance=True)
            torch.testing.assert_close(posterior.mean[batch, :, 0], expected.mean, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(covariance(posterior)[batch], expected.covariance, rtol=1e-9, atol=1e-9)
    assert_same(fantasies.posterior(points), later.posterior(points), tolerances["reference"])
    where = points.clone().requires_grad_()

    def ends(where):
        found = model.posterior(where)
        return found.mean.sum() + found.variance.sum()

    (gradient,) = torch.autograd.grad(ends(where), where)
    step = 1e-6 * torch.randn(points.shape, dtype=torch.float64)
    change = (ends(points + step) - ends(points - step)) / 2.0
    torch.testing.assert_close((gradient * step).sum(), change, rtol=1e-4, atol=1e-9)


def test_gradients_at_a_landmark_are_numbers():
    X, Y = make_rows()
    feature_map = landmarks("matern32")
    model = FeatureGPModel.from_rows(FeatureGP(feature_map, NOISE), X, Y)
    where = feature_map.landmarks[:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.posterior(where).variance.sum(), where)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("noise", [False, True], ids=["function", "observation"])
def test_joint_posterior_is_that_of_the_exact_gp(scaled, noise, points, tolerances):
    X, Y = make_rows()
    for where in (points, points[0]):
        mine = ours(X, Y, scaled=scaled).posterior(where, observation_noise=noise)
        assert_same(mine, exact(X, Y, scaled=scaled).posterior(where, observation_noise=noise), tolerances["peer"])


def test_known_noise(points, tolerances):
    X, Y = make_rows()
    Yvar = 0.01 + 0.2 * torch.rand(30, 1, dtype=torch.float64)
    mine, peer = ours(X, Y, Yvar), exact(X, Y, Yvar)
    assert_same(mine.posterior(points), peer.posterior(points), tolerances["peer"])
    given = torch.rand(4, 1, dtype=torch.float64)
    assert_same(
        mine.posterior(points[0], observation_noise=given),
        peer.posterior(points[0], observation_noise=given),
        tolerances["peer"],
    )


def test_several_outcomes_are_independent_exact_gps(points, tolerances):
    X, Y = make_rows(outcomes=3)
    model = ours(X, Y)
    posterior = model.posterior(points)
    assert (model.num_outputs, posterior.mean.shape) == (3, (5, 4, 3))
    draws = posterior.rsample(torch.Size([7]))
    assert draws.shape == (7, 5, 4, 3)
    for outcome in range(3):
        peer = exact(X, Y[:, outcome : outcome + 1]).posterior(points)
        chosen = model.posterior(points, output_indices=[outcome])
        assert_same(chosen, peer, tolerances["peer"])
        torch.testing.assert_close(posterior.mean[..., outcome], peer.mean[..., 0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(posterior.variance[..., outcome], peer.variance[..., 0], rtol=1e-6, atol=1e-6)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    scalar = model.posterior(points, posterior_transform=ScalarizedPosteriorTransform(weights))
    torch.testing.assert_close(scalar.mean[..., 0], posterior.mean @ weights)


def test_gradients_in_the_inputs():
    """Against finite differences, of mean, covariance, noise, and both after fantasies, also in the fantasies."""
    X, Y = make_rows(outcomes=2)
    noise = InputNoise(nn.Linear(2, 1).double(), reads="inputs", variance=NOISE)
    model = FeatureGPModel.from_rows(FeatureGP(make_map(), noise_model=noise), X, Y, **transforms(2))
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.rand(shape, dtype=torch.float64, generator=generator).requires_grad_()

    def values(where):
        posterior = model.posterior(where, observation_noise=True)
        return posterior.mean, covariance(posterior)

    assert torch.autograd.gradcheck(values, draw(2, 3, 2))

    def fantasised(where, rows, targets):
        posterior = model.condition_on_observations(rows, targets).posterior(where)
        return posterior.mean, covariance(posterior)

    assert torch.autograd.gradcheck(fantasised, (draw(1, 2, 2), draw(3, 2, 2), draw(4, 1, 2, 2)))


@pytest.mark.parametrize("known", [False, True], ids=["own noise", "known noise"])
def test_conditioning_is_refitting(known, points, tolerances):
    """Plain rows and batches of one, in one go and in two: all are the exact GP of all rows."""
    X, Y = make_rows(40)
    Yvar = (0.01 + 0.2 * torch.rand(40, 1, dtype=torch.float64)) if known else None
    whole, start = ours(X, Y, Yvar, scaled=False), ours(X[:30], Y[:30], Yvar[:30] if known else None, scaled=False)
    peer = exact(X, Y, Yvar, scaled=False).posterior(points)

    def add(model, first, last, batched):
        parts = [X[first:last], Y[first:last], Yvar[first:last] if known else None]
        return model.condition_on_observations(
            *(part[None] if batched and part is not None else part for part in parts)
        )

    assert_same(whole.posterior(points), peer, tolerances["peer"])
    ways = [
        add(start, 30, 40, batched=False),
        add(start, 30, 40, batched=True),
        add(add(start, 30, 33, batched=False), 33, 40, batched=True),
        add(add(start, 30, 33, batched=True), 33, 40, batched=False),
        add(add(start, 30, 33, batched=True), 33, 40, batched=True),
    ]
    for way in ways:
        assert_same(way.posterior(points), whole.posterior(points), tolerances["reference"])
    assert start.batch_shape == ways[0].batch_shape == ()
    assert ways[1].batch_shape == (1,)


def test_fantasies_are_those_of_the_exact_gp(points, tolerances):
    """The same base samples give the same fantasies, which give the same posteriors."""
    X, Y = make_rows()
    mine, peer = ours(X, Y), exact(X, Y)
    peer.posterior(points)  # fills GPyTorch's caches, which fantasies need
    fantasies = []
    for model in (mine, peer):
        sampler = IIDNormalSampler(sample_shape=torch.Size([6]), seed=3)
        fantasies.append(model.fantasize(points[:, :2], sampler))
    assert fantasies[0].batch_shape == fantasies[1].batch_shape == (6, 5)
    for where in (points[0], points, points.expand(6, 5, 4, 2)):
        assert_same(*(model.posterior(where) for model in fantasies), tolerances["peer"])


def test_functions_drawn_have_the_posterior_moments():
    """Of one function per draw, and the same function wherever it is asked."""
    X, Y = make_rows(outcomes=2)
    model = ours(X, Y)
    where = X[:3] + 0.1
    torch.manual_seed(0)
    paths = get_matheron_path_model(model, sample_shape=torch.Size([40_000]))
    values = paths(where)
    assert values.shape == (40_000, 3, 2)
    torch.testing.assert_close(paths(where[1:])[:, 0], values[:, 1])
    for outcome in range(2):
        posterior = model.posterior(where, output_indices=[outcome])
        spread = posterior.variance.sqrt()[:, 0]
        off = (values[..., outcome].mean(0) - posterior.mean[:, 0]) / spread
        assert float(off.abs().max()) < 4.0 / 200.0  # four standard errors
        found = torch.cov(values[..., outcome].T) / torch.outer(spread, spread)
        expected = covariance(posterior) / torch.outer(spread, spread)
        assert float((found - expected).abs().max()) < 4.0 * 2.0**0.5 / 200.0


@pytest.fixture
def model():
    X, Y = make_rows(60)
    return ours(X, Y)


def best_on_a_grid(function):
    axes = [torch.linspace(float(low), float(high), 61, dtype=torch.float64) for low, high in BOUNDS.T]
    grid = torch.cartesian_prod(*axes)
    with torch.no_grad():
        return float(function(grid[:, None]).max())


def test_acquisition_functions_agree_with_the_exact_gp(points):
    X, Y = make_rows()
    values = []
    for model in (ours(X, Y), exact(X, Y)):
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
        acquisitions = [
            LogExpectedImprovement(model, best_f=5.5),
            qUpperConfidenceBound(model, beta=4.0, sampler=sampler),
            qLogNoisyExpectedImprovement(
                model, X_baseline=X[:5], sampler=SobolQMCNormalSampler(torch.Size([64]), seed=0), cache_root=False
            ),
        ]
        with torch.no_grad():
            values.append([acq(points[:, :1] if k == 0 else points) for k, acq in enumerate(acquisitions)])
    for mine, peer in zip(*values, strict=True):
        torch.testing.assert_close(mine, peer, rtol=1e-5, atol=1e-5)  # through a Cholesky factor with jitter


@pytest.mark.parametrize("name", ["log noisy EI", "UCB", "Thompson"])
def test_optimize_acqf_finds_the_best_of_a_grid(model, name):
    X, _ = make_rows(60)
    acquisition = {
        "log noisy EI": lambda: qLogNoisyExpectedImprovement(model, X_baseline=X[:10]),
        "UCB": lambda: qUpperConfidenceBound(model, beta=1.0),
        "Thompson": lambda: PathwiseThompsonSampling(model),
    }[name]()
    best = best_on_a_grid(acquisition)
    found, value = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=4, raw_samples=64)
    assert found.shape == (1, 2)
    assert float(value) >= best - 1e-6


def test_batches_of_candidates(model):
    X, _ = make_rows(60)
    acquisition = qLogNoisyExpectedImprovement(model, X_baseline=X[:10])
    for sequential in (False, True):
        found, _ = optimize_acqf(acquisition, BOUNDS, q=3, num_restarts=2, raw_samples=16, sequential=sequential)
        assert found.shape == (3, 2)
        assert float(torch.pdist(found).min()) > 1e-3


def test_knowledge_gradient_is_that_of_the_exact_gp(points):
    """It optimises through fantasies: values and gradients."""
    X, Y = make_rows()
    results = []
    for model in (ours(X, Y), exact(X, Y)):
        model.posterior(points)
        sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
        gradient = qKnowledgeGradient(model, num_fantasies=3, sampler=sampler)
        where = points.clone().requires_grad_()  # q = 1 and three points of the fantasies
        value = gradient(where)
        value.sum().backward()
        results.append((value.detach(), where.grad))
    for mine, peer in zip(*results, strict=True):
        torch.testing.assert_close(mine, peer, rtol=1e-6, atol=1e-6)


def test_thompson_sampling_on_candidates_and_by_optimised_paths(model):
    candidates = BOUNDS[0] + 3.0 * torch.rand(200, 2, dtype=torch.float64)
    chosen = MaxPosteriorSampling(model, replacement=False)(candidates, num_samples=5)
    assert len({tuple(row.tolist()) for row in chosen}) == 5
    paths = get_matheron_path_model(model, sample_shape=torch.Size([4]))
    points, values = optimize_posterior_samples(paths, BOUNDS, raw_samples=128, num_restarts=4)
    with torch.no_grad():
        on_candidates = paths(candidates).max(dim=1).values
    assert points.shape == (4, 2)
    assert bool((values >= on_candidates - 1e-6).all())


def test_a_list_of_models_has_features_of_its_own(points):
    X, Y = make_rows(outcomes=2)
    network = FeatureGP(MLPFeatures(2, hidden=(16,), seed=0), 0.1)
    joint = ModelList(ours(X, Y[:, :1]), FeatureGPModel.from_rows(network, X, Y[:, 1:], **transforms()))
    acquisition = qUpperConfidenceBound(
        joint, beta=1.0, posterior_transform=None, objective=lambda samples, X=None: samples.sum(-1)
    )
    assert acquisition(points).shape == (5,)


class TestAsBoTorchTestsItsModels(BotorchTestCase):
    """The checks of BoTorch's own ``test_gp_regression`` that apply to a model without training tensors."""

    def test_posterior_shapes(self):
        for batch_shape in (torch.Size(), torch.Size([2]), torch.Size([3, 2])):
            for outcomes in (1, 2):
                X, Y = get_random_data(batch_shape=torch.Size(), m=outcomes, d=1, dtype=torch.float64)
                gp = FeatureGP(make_map(columns=1), NOISE)
                model = FeatureGPModel.from_rows(gp, X, Y, outcome_transform=Standardize(outcomes))
                assert model.num_outputs == outcomes
                assert model.batch_shape == torch.Size()
                where = torch.rand(batch_shape + torch.Size([3, 1]), dtype=torch.float64)
                posterior = model.posterior(where)
                noisy = model.posterior(where, observation_noise=True)
                assert posterior.mean.shape == posterior.variance.shape == batch_shape + torch.Size([3, outcomes])
                assert bool((noisy.variance > posterior.variance).all())
                fantasy = model.fantasize(where, SobolQMCNormalSampler(torch.Size([4])))
                assert fantasy.posterior(where).mean.shape == torch.Size([4]) + posterior.mean.shape
                assert bool((fantasy.posterior(where).variance <= posterior.variance + 1e-9).all())
                subset = model.subset_output([outcomes - 1])
                self.assertAllClose(subset.posterior(where).mean, posterior.mean[..., -1:])
                empty = model.fantasize(where[..., :0, :], SobolQMCNormalSampler(torch.Size([4])))
                self.assertAllClose(
                    empty.posterior(where).mean, posterior.mean.expand(torch.Size([4]) + posterior.mean.shape)
                )


def test_refusals_say_what_to_do(model):
    X, Y = make_rows(outcomes=2)
    for kind in ("Fourier", "automatic small", "automatic large", "table of numbers", "table, log"):
        with pytest.raises(DataError, match=r"condition a FeatureGP on rows"):
            FeatureGPModel(kept(kind).fitted)
    with pytest.raises(DataError, match=r"last dimension for the outcomes"):
        model.condition_on_observations(X[:3], Y[:3, 0])
    with pytest.raises(DataError, match=r"botorch.models.model.ModelList"):
        ours(X, Y, torch.rand(30, 2, dtype=torch.float64) + 0.1)
    with pytest.raises(DataError, match=r"must be positive"):
        ours(X, Y, torch.zeros(30, 2, dtype=torch.float64))
    with pytest.raises(DataError, match=r"give one of them"):
        FeatureGPModel.from_rows(FeatureGP(make_map(), NOISE), X, Y, Y.abs(), optimize_noise=True)
    with pytest.raises(DataError, match=r"condition_on_observations"):
        FeatureGPModel.from_rows(FeatureGP(make_map(), NOISE), X[None], Y[None])
    with pytest.raises(DataError, match=r"add dimensions"):
        model.posterior(X[0])
    fantasy = model.fantasize(X[None, :2], SobolQMCNormalSampler(torch.Size([2])))
    with pytest.raises(DataError, match=r"draw them from a model of plain rows"):
        get_matheron_path_model(fantasy)


def test_the_block_of_the_page_runs():
    page = (Path(__file__).parents[1] / "docs" / "botorch.md").read_text()
    block = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    X = torch.rand(100, 6, dtype=torch.float64)
    names = {"X": X, "Y": X.sum(dim=1, keepdim=True), "best_rows": X[:3], "new_Y": torch.ones(3, 1)}
    names["bounds"] = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.float64)
    exec(block, names)
    assert names["model"].fitted.posterior.statistics.num_data == 103
