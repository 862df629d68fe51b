"""Reports: one self-contained HTML file that shows whether to trust a model.

>>> from finitegp.report import gather_contents, write_report
"""

from .contents import Checkup, ColumnFacts, Finding, ReportContents
from .evaluation import Evaluation, evaluate
from .measure import encoded_columns, gather_contents
from .page import render_page, write_report

__all__ = [
    "Checkup",
    "ColumnFacts",
    "Evaluation",
    "Finding",
    "ReportContents",
    "encoded_columns",
    "evaluate",
    "gather_contents",
    "render_page",
    "write_report",
]
