"""Greenstack, Couchbase's protocol of 2015 for all its traffic: served and followed."""
