"""The plugin for ``ensemble plot``, which draws a run into a picture file."""
