"""memcached's protocols and TAP: a bucket served, its changes streamed, others followed."""
