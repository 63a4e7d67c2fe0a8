"""Twenty-three environments, with what `genkidama init` writes and with other programs."""
