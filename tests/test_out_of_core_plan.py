"""Plans of fits, kernels and predictions within a budget: sums, smallest budgets, settings."""

import pytest

from finitegp.automatic import AutoSettings
from finitegp.memory import (
    KernelSetting,
    MemoryBudgetError,
    PredictionSetting,
    plan_fit,
    plan_kernel_fit,
    plan_prediction,
)
from finitegp.out_of_core import settings_for


class TestPlan:
    def test_totals_are_sums_and_the_bill_names_every_item(self):
        plan = plan_fit("64MB", 16, num_data=10**6, test_fraction=0.2, reading_bytes=10**6, columns_bytes=10**5)
        always = sum(item.bytes for item in plan.items if item.phase == "always")
        for phase, total in plan.phases.items():
            assert total == always + sum(item.bytes for item in plan.items if item.phase == phase)
        assert plan.total == max(plan.phases.values())
        assert plan.total < plan.limit <= plan.budget
        text = str(plan)
        for word in ("held-out rows", "decoded part of the table", "noise", "exact pass", "calibration", "prediction"):
            assert word in text

    def test_smaller_budgets_give_smaller_fits_that_fit(self):
        plans = [plan_fit(10**6 * size, 16, num_data=10**6) for size in (256, 64, 32, 16, 8, 6, 4)]
        assert all(plan.fits for plan in plans)
        features = [plan.setting.num_features for plan in plans]
        assert features == sorted(features, reverse=True)
        assert plans[0].setting.members == 5
        assert plans[-1].setting.members == 1
        held_out = [plan.setting.held_out_rows for plan in plans]
        assert held_out == sorted(held_out, reverse=True)

    def test_a_budget_for_nothing_names_the_smallest_which_is_accepted(self):
        with pytest.raises(MemoryBudgetError, match=r"the smallest fit of 16 columns needs [0-9.]+MB") as refused:
            plan_fit("1MB", 16)
        needed = refused.value.plan.limit
        assert plan_fit(needed, 16).fits
        with pytest.raises(MemoryBudgetError):
            plan_fit(int(0.98 * needed), 16)

    def test_held_out_rows_are_a_tenth_and_bounded(self):
        assert plan_fit("64MB", 4, num_data=3000).setting.held_out_rows == 300
        assert plan_fit("64MB", 4, num_data=10**8).setting.held_out_rows == 20_000
        setting = plan_fit("64MB", 4, num_data=3000, test_fraction=0.2).setting
        assert (setting.test_rows, setting.held_out_rows) == (600, 300)

    def test_parameters_are_counted_as_the_networks_have_them(self):
        from finitegp import FeatureGP, Lagged
        from finitegp.automatic.members import make_network
        from finitegp.automatic.residual_noise import _make_network as make_noise_network

        settings = AutoSettings(hidden=(20, 30), num_frequencies=9, embedding_width=5)
        setting = plan_fit("64MB", 7, hidden=(20, 30), num_frequencies=9, embedding_width=5).setting
        algorithm = Lagged(FeatureGP(make_network(7, settings, seed=0), noise_variance=1.0), num_data=10)
        assert sum(p.numel() for p in algorithm.parameters()) == setting.network.num_parameters
        assert sum(p.numel() for p in make_noise_network(7, 64, 0).parameters()) == setting.noise_parameters

    def test_kernels_and_predictions_have_plans_too(self):
        small = plan_kernel_fit(10**9, KernelSetting(1500, 16, 530))
        assert small.fits
        assert "1500 rows of 16 columns" in str(small)
        assert not plan_kernel_fit(10**7, KernelSetting(1500, 16, 530)).fits
        setting = PredictionSetting(num_columns=9, num_features=641, num_parameters=200_000, layer_width=300)
        assert plan_prediction("64MB", setting).setting.chunk_size < 4096
        with pytest.raises(MemoryBudgetError, match="prediction with this model needs") as refused:
            plan_prediction("1MB", setting)
        assert plan_prediction(refused.value.plan.limit, setting).fits
        with pytest.raises(MemoryBudgetError):
            plan_prediction(int(0.98 * refused.value.plan.limit), setting)

    def test_settings_grow_with_the_rows_and_stay_where_given(self):
        assert settings_for(AutoSettings(), num_columns=40, num_data=10_000) == AutoSettings()
        large = settings_for(AutoSettings(), num_columns=2, num_data=10**8)
        assert (large.batch_size, large.embedding_width) == (1024, 32)
        given = settings_for(AutoSettings(), num_columns=2, num_data=10**8, given={"batch_size": 64})
        assert given.batch_size == 64
