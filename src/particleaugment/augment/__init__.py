"""Policies at work on batches, single images and in worker processes."""
