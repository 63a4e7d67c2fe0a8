"""A run on disk and its meaning: history, checkpoints, status, evaluation, `Run`."""
