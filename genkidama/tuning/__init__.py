"""A search is led, kept and told here; only study and storage touch a database, figures a file.

The rule itself is `genkidama.hypertrick`, which knows nothing of experiments.
"""
