"""Rows in combination: the choices that `Combinations` allows for the calls of torch's samples, run on small meshes.

From the repository's root, `python -m tests.combinations --jobs 2` tries every choice that needs a local form and a
sample of all others, for every overload that the book has rows of.
"""
