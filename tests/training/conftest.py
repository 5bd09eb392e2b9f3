from runs import few_digits, no_report, one_thread, tiny

__all__ = ["few_digits", "no_report", "one_thread", "tiny"]
