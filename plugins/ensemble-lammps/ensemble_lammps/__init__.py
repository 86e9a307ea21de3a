"""LAMMPS for Ensemble."""
