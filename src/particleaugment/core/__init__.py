"""Ops, their arguments, programs and draws: what everything else is made of."""
