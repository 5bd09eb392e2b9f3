"""Training runs: the algorithm, and everything that makes a run survive."""

from particleaugment.training.config import Config, ConfigError
from particleaugment.training.override import override
from particleaugment.training.run import RunError, RunFolder

__all__ = ["Config", "ConfigError", "RunError", "RunFolder", "override"]
