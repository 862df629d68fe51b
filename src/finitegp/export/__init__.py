"""Models for other runtimes: C99 headers and ONNX graphs, both printed from the formulas of ``finitegp.lite``."""

from .c_export import CExport, export_c
from .onnx_graph import OnnxExport, to_onnx

__all__ = ["CExport", "OnnxExport", "export_c", "to_onnx"]
