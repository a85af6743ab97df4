"""Redis's protocol, as far as messages on channels, and values for a while, need it."""
