"""Models for other runtimes: C99 headers and ONNX graphs, both printed from the formulas of ``finitegp.lite``."""

from .c_export import CExport, export_c

__all__ = ["CExport", "export_c"]
