"""The verbs of the `genkidama` command: here words become calls, and results become text.

Any folder may be imported here. Only `genkidama.__main__` imports this one. Results are printed
here.

parser.py   what may be typed, as data
verbs.py    what each verb does
starting.py what the verbs do that help to begin; template.toml is what `init` writes
"""
