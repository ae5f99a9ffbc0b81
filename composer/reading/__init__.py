"""From a prompt to a lease: look up, prefetch, load back."""
