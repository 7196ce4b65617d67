"""A checker of the book that shares no code with discovery: plain torch, torch's samples, arguments changed at random.

Of the library it uses what a user of the rules uses: the rows of a call, and the local form that a row names. From the
repository's root, `python -m tests.independent --seed 1 --jobs 2 --json FILE` checks every rule once.
"""
