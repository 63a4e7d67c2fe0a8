"""The settings of a run: sections, ranges, TOML, checks. Pure."""
