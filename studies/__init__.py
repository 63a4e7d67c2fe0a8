"""Finished studies: each answers one question, once, with rows and a page that stay."""
