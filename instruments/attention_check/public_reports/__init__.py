"""Public reports of attention that differs, each made anew by a call."""
