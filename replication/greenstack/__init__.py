"""Greenstack, Couchbase's protocol of 2015 for all traffic on one connection: served and followed."""
