"""The subcommands of ``ensemble``. Each is a module, which is imported on its first use."""
