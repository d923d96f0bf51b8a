"""Where the router meets the world: who is let in, by which certificate, and what is written down about it."""
