"""The op table, and ops of one's own: what users meet as ``pa.ops``."""

from particleaugment.core.op_table import *  # noqa: F403
from particleaugment.core.op_table import __all__ as _table
from particleaugment.executors.check import OpCheck, check

__all__ = [*_table, "OpCheck", "check"]
