"""Parts of the serving launcher: settings, text, the queue, the HTTP endpoint, and processes."""
