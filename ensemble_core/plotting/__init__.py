"""Pictures of runs: from a journal to plain data (``story``, ``curves``, ``choice``), and from that
to a file (``drawing``, which alone knows matplotlib). Called by ``ensemble plot``."""
