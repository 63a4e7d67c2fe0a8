"""The study of a parent that lasts."""
