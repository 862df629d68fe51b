"""What a record says about the machine and the versions."""

import importlib.metadata
import json
import os
import re
import sys
from types import ModuleType

from paper import environment as module
from paper.environment import PEER_PACKAGES, environment


def test_record_names_processor_blas_and_versions():
    found = json.loads(json.dumps(environment()))
    assert found["cores"] == os.cpu_count()
    assert found["processor"]
    for name in ("numpy", "scipy", "scikit-learn"):
        assert found["packages"][name] == importlib.metadata.version(name)
    blas = [library for library in found["blas"] if library["user_api"] == "blas"]
    assert blas
    assert all(library["num_threads"] >= 1 and library["internal_api"] for library in blas)
    assert "/" not in json.dumps(found["blas"])  # no paths of this machine
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?|unknown", found["commit"])


def test_packages_of_peers_are_named_once_they_are_used(monkeypatch):
    for name in PEER_PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert set(environment()["packages"]) == {"numpy", "scipy", "scikit-learn"}
    monkeypatch.setattr(module, "_version", lambda package: None if package == "vbll" else "1.2")
    for name in ("laplace", "vbll"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    packages = environment()["packages"]
    assert packages["laplace-torch"] == "1.2"
    assert "vbll" not in packages  # a module that no installed package brings
