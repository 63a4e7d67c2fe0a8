"""Optional parts. Each folder imports the core, no folder imports it, and it can be deleted."""
