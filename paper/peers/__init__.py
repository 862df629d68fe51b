"""The methods that ours is compared with, each one function from a split to an outcome.

Every peer has settings with documented defaults, in :data:`DEFAULTS`, such as a practitioner would find in a few
minutes. The packages behind them are imported when a peer is called: ``svgp-rbf`` and
``svgp-network`` need the extra ``finitegp[peers]``; ``vbll``, ``laplace``, ``realmlp``, ``lightgbm`` and ``ngboost``
need ``finitegp[benchmark-peers]``; the rest need nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import boosting, ensemble, laplace, mlp, realmlp, sklearn_models, svgp, vbll
from .contract import PeerFunction

#: Every peer by its name.
PEERS: dict[str, PeerFunction] = {
    "bayesridge": sklearn_models.bayesridge,
    "ensemble": ensemble.fit_and_predict,
    "laplace": laplace.fit_and_predict,
    "lightgbm": boosting.lightgbm,
    "mlp": mlp.fit_and_predict,
    "ngboost": boosting.ngboost,
    "realmlp": realmlp.fit_and_predict,
    "sklearn-gpr": sklearn_models.gaussian_process,
    "svgp-network": svgp.network,
    "svgp-rbf": svgp.rbf,
    "vbll": vbll.fit_and_predict,
}

#: The default settings of every peer.
DEFAULTS: dict[str, Mapping[str, Any]] = {
    "bayesridge": sklearn_models.BAYESRIDGE_DEFAULTS,
    "ensemble": ensemble.DEFAULTS,
    "laplace": laplace.DEFAULTS,
    "lightgbm": boosting.LIGHTGBM_DEFAULTS,
    "mlp": mlp.DEFAULTS,
    "ngboost": boosting.NGBOOST_DEFAULTS,
    "realmlp": realmlp.DEFAULTS,
    "sklearn-gpr": sklearn_models.GPR_DEFAULTS,
    "svgp-network": svgp.NETWORK_DEFAULTS,
    "svgp-rbf": svgp.RBF_DEFAULTS,
    "vbll": vbll.DEFAULTS,
}

__all__ = ["DEFAULTS", "PEERS", "PeerFunction"]
