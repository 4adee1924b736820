"""The pure core: standard library without effects, and pydantic. No async, clock, randomness, disk or network."""
