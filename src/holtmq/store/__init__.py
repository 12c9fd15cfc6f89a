"""What survives a restart: the ports that the broker and the embedded library use, and the stores behind them."""
