"""The subcommands of ``ensemble``, one module each, imported when called."""
