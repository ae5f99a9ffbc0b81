"""From a commit to storage: back up, write, prove, retry."""
