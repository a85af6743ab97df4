"""memcached's binary protocol and TAP: a bucket served, its changes streamed, others followed."""
