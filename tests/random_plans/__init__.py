"""Random plans of small models, verified: grouped-query attention, encoders and decoders, convolutions, recurrence.

From the repository's root, `python -m tests.random_plans` verifies twenty plans of each on three meshes.
"""
