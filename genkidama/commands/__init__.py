"""The verbs of the `genkidama` command. Here a person's words become calls, and results become text.

parser.py   what may be typed, as data
verbs.py    what each verb does
"""
