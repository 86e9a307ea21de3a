"""The executor ``local``: jobs as processes of this machine. A plugin that nothing imports."""
