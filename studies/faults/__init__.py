"""Faults for real: what becomes of a run when its processes, disks, links and clocks fail."""
