"""Change capture: the transactions of a folder or server, for a program that keeps its place.

`token` is the place as text, `stream` returns the transactions after it, `running` calls a function
for each and stores the place with what it did.
"""
