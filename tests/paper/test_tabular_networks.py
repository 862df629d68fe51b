"""RealMLP and TabM: epochs are chosen before the fit, and nothing cuts it; with a stand-in for their package."""

from types import SimpleNamespace

import numpy as np
import pytest

from paper.outcome import DatasetSplit
from paper.peers import contract, tabular_networks
from paper.peers.tabular_networks import realmlp, tabm


class Package:
    """A regressor that takes 0.5 seconds of a clock of its own and 1 more for each epoch, and stops early if told."""

    def __init__(self, monkeypatch, stops_after=10**9, prints=False):
        self.clock, self.fits = 0.0, []
        self.stops_after, self.prints = stops_after, prints
        self.RealMLP_TD_Regressor = self.TabM_D_Regressor = self.make
        monkeypatch.setattr(tabular_networks, "require", lambda package, peer: self)
        monkeypatch.setattr(contract, "_processor_seconds", lambda: self.clock)

    def make(self, n_epochs, **options):
        def fit(inputs, targets, **arguments):
            run = min(n_epochs, self.stops_after)
            self.clock += 0.5 + run
            self.fits.append((n_epochs, run, arguments))
            if self.prints:
                print("(val) 0.1\n" * run)
            return SimpleNamespace(predict=lambda rows: np.zeros(len(rows)))

        return SimpleNamespace(fit=fit)


def make_split():
    inputs = np.random.default_rng(0).normal(size=(60, 2))
    return DatasetSplit("line", 0, inputs[:50], inputs[:50, 0], inputs[50:], inputs[50:, 0])


@pytest.mark.parametrize("peer", [realmlp, tabm])
def test_the_schedule_is_chosen_before_and_never_cut(monkeypatch, peer):
    package = Package(monkeypatch)
    found = peer(make_split(), seed=0, settings={"epochs": 256, "max_seconds": 100.0})
    (*probes, (planned, run, _)) = package.fits
    assert [epochs for epochs, _, _ in probes] == [1, 3]
    # The probes took 5 seconds, an epoch takes one.
    assert planned == run == found.details["epochs"] == 95
    assert found.details["shortened"]
    assert found.seconds == package.clock
    # The package's own limit is one of the clock on the wall, in the middle of the schedule.
    assert all(set(arguments) == {"val_idxs"} for _, _, arguments in package.fits)


@pytest.mark.parametrize(("epochs", "max_seconds"), [(60, 100.0), (256, None), (3, 1.0)])
def test_schedules_that_fit_or_have_no_limit_are_whole(monkeypatch, epochs, max_seconds):
    package = Package(monkeypatch)
    found = realmlp(make_split(), seed=0, settings={"epochs": epochs, "max_seconds": max_seconds})
    assert package.fits[-1][0] == found.details["epochs"] == epochs
    assert not found.details["shortened"]


def test_ended_by_validation_rows_is_not_shortened(monkeypatch):
    Package(monkeypatch, stops_after=40, prints=True)
    found = tabm(make_split(), seed=0, settings={"max_seconds": 100.0})
    assert found.details["epochs"] == 40
    assert not found.details["shortened"]
    Package(monkeypatch, stops_after=200, prints=True)
    found = tabm(make_split(), seed=0, settings={"max_seconds": 100.0})
    assert found.details["epochs"] == 95
    assert found.details["shortened"]
