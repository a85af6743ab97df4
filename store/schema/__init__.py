"""What spaces are: definitions, types, formats, keys, plans."""
