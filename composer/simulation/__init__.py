"""A stack without payload: what production would hold, move and evict, counted in seconds."""
