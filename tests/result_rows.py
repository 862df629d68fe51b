"""Lines of results as the runs write them, with figures of the test's own."""


def make_row(method="scgd", nlml=-1.0, *, dataset="bike", split=0, kernel="linear", batch_size=32, rate=1.0, **other):
    """A run by the paper's protocol; ``settings`` takes the place of the protocol."""
    bound = method == "svgp" and kernel == "gaussian"
    figures = {"negative_elbo": nlml} if bound else {"nlml": nlml, "nlml_float64": nlml}
    return {
        "dataset": dataset,
        "split": split,
        "method": method,
        "kernel": kernel,
        "batch_size": batch_size,
        "epochs": 100,
        "seed": 0,
        "rmse": 0.1,
        "nlpd": -0.5,
        "crps": 0.05,
        "coverage": {"0.5": 0.5, "0.9": 0.91, "0.95": 0.95},
        "largest_standardized_residual": 4.0,
        "seconds": 12.0,
        "peak_memory_bytes": 500_000_000,
        "memory_before_bytes": 400_000_000,
        **figures,
        **other,
        "settings": other.get("settings", {"protocol": "paper"}) | {"learning_rate": rate},
    }


def make_peer(method="lightgbm", **other):
    """A run of the default or a peer."""
    return make_row(method, None) | {"kernel": None, "batch_size": None, "epochs": None, "settings": {}} | other
