"""The methods that ours is compared with, each one function from a split to an outcome.

Every peer has settings with documented defaults, in :data:`DEFAULTS`, such as a practitioner would find in a few
minutes. Each is there twice: as it is, and under its name with ``+t`` after the treatment of :mod:`.posthoc`. The
packages behind them are imported when a peer is called and come with the extra ``finitegp[benchmark-peers]``;
``svgp-rbf`` and ``svgp-network`` need only ``finitegp[peers]``, and ``bayesridge``, ``ensemble``, ``mlp`` and
``sklearn-gpr`` nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import boosting, ensemble, laplace, mlp, posthoc, sklearn_models, svgp, tabular_networks, vbll
from .contract import PeerFunction

#: Every peer as it is, with its default settings.
PLAIN: dict[str, tuple[PeerFunction, Mapping[str, Any]]] = {
    "bayesridge": (sklearn_models.bayesridge, sklearn_models.BAYESRIDGE_DEFAULTS),
    "catboost": (boosting.catboost, boosting.CATBOOST_DEFAULTS),
    "ensemble": (ensemble.fit_and_predict, ensemble.DEFAULTS),
    "laplace": (laplace.fit_and_predict, laplace.DEFAULTS),
    "lightgbm": (boosting.lightgbm, boosting.LIGHTGBM_DEFAULTS),
    "mlp": (mlp.fit_and_predict, mlp.DEFAULTS),
    "ngboost": (boosting.ngboost, boosting.NGBOOST_DEFAULTS),
    "realmlp": (tabular_networks.realmlp, tabular_networks.REALMLP_DEFAULTS),
    "sklearn-gpr": (sklearn_models.gaussian_process, sklearn_models.GPR_DEFAULTS),
    "svgp-network": (svgp.network, svgp.NETWORK_DEFAULTS),
    "svgp-rbf": (svgp.rbf, svgp.RBF_DEFAULTS),
    "tabm": (tabular_networks.tabm, tabular_networks.TABM_DEFAULTS),
    "vbll": (vbll.fit_and_predict, vbll.DEFAULTS),
    "xgboost": (boosting.xgboost, boosting.XGBOOST_DEFAULTS),
}

#: What the name of a peer ends with after the treatment.
TREATED = "+t"

#: Every peer by its name, as it is and after the treatment.
PEERS: dict[str, PeerFunction] = {name: peer for name, (peer, _) in PLAIN.items()} | {
    name + TREATED: posthoc.with_treatment(peer) for name, (peer, _) in PLAIN.items()
}

#: The default settings of every peer.
DEFAULTS: dict[str, Mapping[str, Any]] = {name: defaults for name, (_, defaults) in PLAIN.items()} | {
    name + TREATED: {**defaults, **posthoc.DEFAULTS} for name, (_, defaults) in PLAIN.items()
}

__all__ = ["DEFAULTS", "PEERS", "PLAIN", "TREATED", "PeerFunction"]
