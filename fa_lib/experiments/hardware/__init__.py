"""What a GPU does in one step: how its matrix units add, what its instructions give, measured on it."""
