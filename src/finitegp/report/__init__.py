"""Reports: one self-contained HTML file that shows whether to trust a model.

>>> from finitegp.report import gather_contents, write_report
"""

from .contents import ReportContents
from .findings import Checkup, Finding
from .gathering import gather_contents
from .page import render_page, write_report

__all__ = ["Checkup", "Finding", "ReportContents", "gather_contents", "render_page", "write_report"]
