"""Figures of runs: they read what lies on disk, and draw it with Matplotlib."""
