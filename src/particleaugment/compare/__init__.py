"""Comparisons: several arms, several seeds, one table."""
