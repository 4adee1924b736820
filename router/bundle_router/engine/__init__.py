"""The engine: routes steps, makes calls and relays requests, over the ports."""
