"""The verbs of the `genkidama` command: here words become calls, and results become text.

Any folder may be imported here. Only `genkidama.__main__` imports this one. Results are printed
here.
"""
