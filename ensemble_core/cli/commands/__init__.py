"""The subcommands of ``ensemble``. Each is a module, which is imported when it is called."""
