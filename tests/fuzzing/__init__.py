"""Fuzzing of all that reads what others send or keep on disk (CONTRIBUTING.md says how to start).

A *target* is a function of bytes that raises nothing: it suppresses the errors that its decoder
documents, and asserts the decoder's laws. `corpus/NAME.txt` holds inputs that were interesting, one
in base64 a line. `make test` plays them; Atheris, a coverage-guided fuzzer, goes on from them.
"""
