"""The `genkidama` command: its verbs, the local cluster, the terminal display."""
