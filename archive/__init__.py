"""A continuous, verified copy of a store at another place, and what is restored from it.

`entry` is the form of what says that an object is there, `objects` the places that hold them,
`catalog` what a place can restore, `archiver` writes, `fetch` reads, `child` is the archiver that a
server runs as a process of its own. `docs/archive.md` tells the layout.
"""
