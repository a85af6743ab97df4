"""Tank, a log broker: serve its clients, follow its brokers, read its data folders."""
