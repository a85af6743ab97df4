"""Where tuples are: layers in memory over LMDB."""
