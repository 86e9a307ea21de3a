"""The subcommands of ``ensemble``. Each is a module that is imported when it is first used."""
