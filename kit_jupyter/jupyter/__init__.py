"""The only rooms that know IPython, ipywidgets and anywidget."""
