"""What each tier holds, and what it gives up when it is full."""
