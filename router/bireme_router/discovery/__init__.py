"""How the router learns which groups exist and what state each is in."""
