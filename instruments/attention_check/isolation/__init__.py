"""A reader's kernel, called in a separate process: it may hang, crash, print, exit or change torch's state."""
