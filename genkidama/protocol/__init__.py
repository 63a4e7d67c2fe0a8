"""Messages on the wire and the child's side of the conversation: vectors, deltas, session, tokens.
Pure.
"""
