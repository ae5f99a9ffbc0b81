"""Bindings to engines: each binds the cache of one engine to the pools of a stack."""
