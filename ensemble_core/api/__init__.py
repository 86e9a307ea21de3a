"""The Python API: runs, watches, steers and evaluates ensembles from a program."""
