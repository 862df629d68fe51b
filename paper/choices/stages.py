"""The stages of the search, in the order in which they were run."""

from __future__ import annotations

from typing import Any

from .settings import METHODS, ONLY, OPTIONS

Task = tuple[str, str, float, dict[str, Any]]  # table, method, rate, setting; the setting may hold another "seed"
#: The order in which the options are varied: likely strong ones first.
ONE_AT_A_TIME = (
    *("adadelta", "targets", "loss", "track", "inputs", "w_start", "noise_start", "noise", "init", "last_relu"),
    *("output_scale", "f_start", "dtype", "sampling", "drop_last", "noise_least", "jitter"),
)


def stages() -> dict[str, list[Task]]:
    """Every stage of the search in the order it was run."""
    plan: dict[str, list[Task]] = {}
    # 1: one option at a time from the defaults, on the table with the smallest deviations.
    plan["1-one-elevators"] = [
        ("elevators", method, rate, change)
        for name in ONE_AT_A_TIME
        for change in ([{}] if name == "adadelta" else []) + [{name: value} for value in OPTIONS[name][1:]]
        for method in METHODS
        for rate in (1.0, 0.1)
        if ONLY.get(name, method) == method
    ]
    # 2: around raw targets, where both methods were nearer; SCGD's own options crossed.
    raw = {"targets": "raw"}
    plan["2-raw"] = [
        (table, "scgd", rate, raw | {"w_start": w, "track": track})
        for w in ("normal", "ridge")
        for track in ("before", "after")
        for rate in (1.0, 3.0)
        for table in ("elevators", "bike")
    ] + [
        (table, "bsgd", rate, raw | change)
        for change in ({}, {"last_relu": False}, {"output_scale": True}, {"init": "glorot"}, {"adadelta": "0.95/1e-6"})
        for rate in (1.0, 3.0)
        for table in ("elevators", "bike")
    ]
    # 3: bike, where 0.9/1e-6 at rates of 1 and more is far off: smaller steps, and a loss that makes eps negligible.
    plan["3-bike-steps"] = [
        ("bike", method, rate, raw | change)
        for rate in (0.1, 0.3, 1.0)
        for method, change in (
            ("scgd", {"loss": "total"}),
            ("bsgd", {"loss": "total"}),
            ("scgd", {"loss": "total", "w_start": "normal"}),
            ("bsgd", {}),
            ("scgd", {"adadelta": "0.95/1e-8", "w_start": "normal"}),
            ("bsgd", {"adadelta": "0.95/1e-8"}),
            ("scgd", {"adadelta": "0.95/1e-8", "loss": "total"}),
            ("bsgd", {"adadelta": "0.95/1e-8", "loss": "total"}),
            ("scgd", {"loss": "total", "track": "after"}),
        )
    ]
    # 4: BSGD on bike, whose noise falls far below its residuals: bounds and parameters of the noise.
    plan["4-bike-noise"] = [
        ("bike", "bsgd", rate, raw | change)
        for rate in (0.3, 1.0)
        for change in (
            {"noise_least": 1e-3},
            {"noise_least": 1e-4},
            {"noise_least": 1e-3, "noise": "variance"},
            {"noise": "variance"},
            {"noise": "sigma"},
            {"noise_least": 1e-3, "last_relu": False},
            {"inputs": "unit"},
            {"inputs": "unit", "noise_least": 1e-3},
        )
    ]
    # 5: with the total loss only rate * sqrt(eps) matters, so one eps is enough; rho 0.95 was better on bike. The
    # noise variance itself as the parameter kept BSGD's noise on bike from collapsing without a bound.
    base = raw | {"noise": "variance", "loss": "total", "adadelta": "0.95/1e-6"}
    plan["5-variance"] = [
        (table, method, rate, base | change)
        for method, change in (
            ("scgd", {"track": "after"}),
            ("bsgd", {}),
            ("scgd", {}),
            ("scgd", {"track": "after", "init": "he"}),
            ("bsgd", {"init": "he"}),
            ("scgd", {"track": "after", "targets": "standard"}),
            ("bsgd", {"targets": "standard"}),
            ("scgd", {"track": "after", "last_relu": False}),
            ("scgd", {"track": "after", "w_start": "small"}),
            ("scgd", {"track": "after", "noise": "log"}),
        )
        for table, rate in (("bike", 0.1), ("elevators", 1.0), ("bike", 0.3))
    ]
    # 6: the same base on the other tables, and the rate between 0.1 and 1 on elevators.
    plan["6-base-all"] = (
        [("elevators", "bsgd", 0.3, base), ("elevators", "scgd", 0.3, base | {"track": "after"})]
        + [("elevators", "scgd", r, base | {"track": "after", "w_start": "ridge"}) for r in (0.3, 1.0)]
        + [("pol", m, r, base) for r in (0.3, 1.0) for m in METHODS]
        + [("pol", "scgd", r, base | {"track": "after"}) for r in (0.3, 1.0)]
        + [("kin40k", m, r, base) for r in (0.3, 1.0) for m in METHODS]
        + [("kin40k", "scgd", r, base | {"track": "after"}) for r in (0.3, 1.0)]
    )
    # 7: SCGD's start of w against its order of tracking, at the rates that were best.
    plan["7-w-start"] = [
        (table, "scgd", rate, base | {"w_start": w, "track": track})
        for table, rate in (("bike", 0.1), ("elevators", 0.3), ("bike", 0.03), ("elevators", 0.1))
        for w in ("linear", "ridge", "small", "zero")
        for track in ("after", "before")
    ]
    # 8: one option at a time again, from the base of stage 5.
    changes: list[dict[str, Any]] = [{"adadelta": "0.9/1e-6"}, {"init": "glorot"}, {"output_scale": True}]
    changes += [{"noise_start": v} for v in (0.01, 0.693, 1.0)] + [{"noise": v} for v in ("sigma", "softplus")]
    changes += [{"dtype": "float64"}, {"sampling": "replacement"}, {"drop_last": True}, {"noise_least": 1e-4}]
    changes += [{"f_start": "full"}, {"f_start": "identity"}, {"loss": "row"}]
    after = {"track": "after"}
    plan["8-one-from-base"] = [
        ("kin40k", "scgd", 0.1, base | after),
        ("kin40k", "bsgd", 0.1, base),
        ("kin40k", "scgd", 0.1, base | after | {"w_start": "ridge"}),
        ("kin40k", "scgd", 0.3, base | after | {"w_start": "ridge"}),
    ] + [
        (table, method, rate, base | change | (after if method == "scgd" else {}))
        for change in changes
        for method, table, rate in (
            ("scgd", "elevators", 0.3),
            ("scgd", "bike", 0.1),
            ("bsgd", "elevators", 0.3),
            ("bsgd", "bike", 0.3),
        )
        if ONLY.get(next(iter(change)), method) == method
    ]
    # 9: the exact NLML jumps from look to look, so the number of looks is a choice too.
    plan["9-looks"] = [
        (table, method, 0.1 if table == "bike" and method == "scgd" else 0.3, base | change | {"looks": 100})
        for table in ("kin40k", "elevators", "bike", "pol")
        for method, change in (("bsgd", {}), ("scgd", {}), ("scgd", after))
    ]
    # 10: small random starts of w with GPyTorch's first noise; and, since BSGD on elevators hardly moves with
    # anything but the inputs' scale (the larger, the lower), larger and whitened inputs.
    many = {"looks": 100}
    plan["10-w-noise-inputs"] = [
        ("elevators", "bsgd", 0.3, base | many | {"inputs": "white"}),
        ("elevators", "bsgd", 0.3, base | many | {"inputs": "triple"}),
        ("bike", "bsgd", 0.3, base | many | {"inputs": "white"}),
        ("elevators", "scgd", 0.3, base | many | after | {"inputs": "white"}),
    ] + [
        (table, "scgd", rate, base | many | after | {"noise_start": 0.693, "w_start": w})
        for w in ("linear", "zero", "small")
        for table, rate in (("bike", 0.1), ("elevators", 0.3), ("kin40k", 0.3))
    ]
    # 11: both inputs on all tables.
    ridge_linear = ("ridge", "linear")
    places = (("elevators", 0.3), ("bike", 0.1), ("pol", 0.3), ("kin40k", 0.3))
    plan["11-all-cells"] = (
        [("elevators", "scgd", 0.3, base | many | after | {"inputs": "white", "w_start": w}) for w in ridge_linear]
        + [("bike", "scgd", 0.1, base | many | after | {"inputs": "white", "w_start": w}) for w in ("linear", "zero")]
        + [(t, "bsgd", 0.3, base | many | {"noise_start": 0.693}) for t, _ in places]
        + [(t, "bsgd", 0.3, base | many | {"inputs": "white"}) for t in ("pol", "kin40k")]
        + [("pol", "scgd", 0.3, base | many | after | {"noise_start": 0.693, "w_start": w}) for w in ("linear", "zero")]
        + [("pol", "scgd", 0.3, base | many | after | {"inputs": "white", "w_start": w}) for w in ("linear", "zero")]
        + [("kin40k", "scgd", 0.3, base | many | after | {"inputs": "white", "w_start": w}) for w in ("linear", "zero")]
        + [(t, "scgd", r, base | many | after | {"w_start": "linear"}) for t, r in places]
    )
    # 12: the larger first noise with standardised targets.
    standard = base | many | {"targets": "standard", "noise_start": 0.693}
    plan["12-standard"] = (
        [("elevators", "scgd", 0.3, standard | after | {"w_start": w}) for w in ("linear", "ridge")]
        + [("bike", "scgd", 0.1, standard | after | {"w_start": w}) for w in ("linear", "ridge")]
        + [("pol", "scgd", 0.3, standard | after | {"w_start": "linear"})]
        + [(t, "bsgd", 0.3, standard) for t in ("elevators", "bike", "pol")]
    )
    # 13: whitened inputs, which brought elevators near: first noise and still smaller starts of w.
    white = base | many | {"inputs": "white"}
    plan["13-white"] = (
        [("bike", "scgd", 0.1, white | after | {"w_start": w, "noise_start": 0.693}) for w in ("linear", "tiny")]
        + [("elevators", "scgd", 0.3, white | after | {"w_start": w, "noise_start": 0.693}) for w in ("linear", "tiny")]
        + [("elevators", "scgd", 0.3, white | {"w_start": "linear"})]
        + [("bike", "scgd", 0.3, white | after | {"w_start": "linear", "noise_start": 0.693})]
        + [(t, "bsgd", 0.3, white | {"noise_start": 0.693}) for t in ("elevators", "bike", "pol")]
        + [("elevators", "bsgd", 1.0, white), ("elevators", "bsgd", 0.1, white)]
    )
    nearest = [("elevators", "bsgd", 0.3), ("elevators", "scgd", 0.3), ("bike", "bsgd", 0.3), ("bike", "scgd", 0.1)]
    # 14: two inputs of elevators have outliers at 80 and 110 deviations, so standardising hides the rest of them.
    plan["14-outliers"] = [
        (t, m, r, base | many | {"inputs": i} | (after | {"w_start": "linear"} if m == "scgd" else {}))
        for t, m, r in (*nearest, ("pol", "bsgd", 0.3))
        for i in ("robust", "clip")
    ]
    # 15: what whitened inputs and the random start of w still lack.
    plan["15-rest"] = (
        [("kin40k", "scgd", 0.3, white | after | {"w_start": "linear"})]
        + [(t, "scgd", 0.3, white | after | {"w_start": "linear", "noise_start": 0.693}) for t in ("pol", "kin40k")]
        + [("kin40k", "bsgd", 0.3, white | {"noise_start": 0.693})]
        + [(t, "bsgd", 1.0, white) for t in ("pol", "bike")]
        + [("pol", "scgd", 0.3, base | many | after | {"w_start": "linear"})]
        + [("kin40k", "scgd", 0.3, base | many | after | {"w_start": "linear"})]
    )
    # 16: the finalists' other rates: whitened and standardised inputs, w as torch.nn.Linear, both orders of tracking.
    linear = {"w_start": "linear"}
    plan["16-rates"] = (
        [("bike", "scgd", 0.3, white | after | linear), ("bike", "bsgd", 1.0, white), ("pol", "bsgd", 1.0, white)]
        + [("elevators", "scgd", 1.0, white | after | linear), ("pol", "scgd", 1.0, white | after | linear)]
        + [("kin40k", "bsgd", 1.0, white), ("kin40k", "scgd", 1.0, white | after | linear)]
        + [("bike", "scgd", 0.3, base | many | after | linear), ("bike", "bsgd", 1.0, base | many)]
        + [("pol", "bsgd", 1.0, base | many), ("pol", "scgd", 1.0, base | many | after | linear)]
        + [("elevators", "scgd", 1.0, base | many | after | linear), ("elevators", "bsgd", 1.0, base | many)]
        + [("bike", "scgd", r, white | linear) for r in (0.1, 0.3)]
        + [("pol", "scgd", 0.3, white | linear), ("kin40k", "scgd", 0.3, white | linear)]
    )
    # 17: how much a second seed changes.
    plan["17-seed"] = [
        (table, method, rate, base | many | {"seed": 1} | (after | linear if method == "scgd" else {}))
        for table, method, rate in (*nearest, ("kin40k", "bsgd", 0.3))
    ]
    return plan
