"""Filters at work: a policy that is learned while a network trains."""
