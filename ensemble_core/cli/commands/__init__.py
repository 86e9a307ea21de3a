"""The subcommands of ``ensemble``, each in a module of the same name."""
