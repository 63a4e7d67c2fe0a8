"""The parent's decisions: parameter server, trials, validation, limits. Pure."""
