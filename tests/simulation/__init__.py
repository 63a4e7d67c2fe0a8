"""Days of a parent and its children in one process and virtual time, played from a seed."""
