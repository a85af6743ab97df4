"""Synapse's replication protocol: follow a homeserver's streams, and serve streams in its form."""
