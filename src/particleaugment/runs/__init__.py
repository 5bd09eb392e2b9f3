"""Runs as users start them."""
