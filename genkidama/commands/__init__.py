"""The verbs of the `genkidama` command: here words become calls, and results become text.

Anything may be imported here but by nobody else, and what is printed is printed here.

parser.py   what may be typed, as data
verbs.py    what each verb does
"""
