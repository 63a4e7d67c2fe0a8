"""What a person sees of a run from outside: the page, its feed, and what monitors read.

Nothing here changes a run. Modules of `parent/` bring events in and answers out.
"""
