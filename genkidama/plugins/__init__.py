"""Optional parts. Each folder imports the core, is imported by nobody, and can be deleted."""
