"""Measurements of speed: what ``particleaugment bench`` and the scripts under ``benchmarks`` share."""
