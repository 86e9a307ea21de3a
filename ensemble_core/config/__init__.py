"""The ensemble file."""
