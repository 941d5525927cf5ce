"""How cells, notebooks and jobs are run, cached and written. It knows no kernel."""
