"""A stranger's kernel, called in a process of its own: it may hang, crash, print, exit or change torch's state."""
