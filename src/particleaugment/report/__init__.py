"""What a run looks like: galleries, plots and the report."""
