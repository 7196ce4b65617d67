"""`python -m shardwise`: the same as the command `shardwise`."""

from .cli import main

main()
