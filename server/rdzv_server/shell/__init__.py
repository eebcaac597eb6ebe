"""The only asyncio in the server: sockets, timer, signals, logs. It decides nothing."""
