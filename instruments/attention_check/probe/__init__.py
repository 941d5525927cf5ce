"""Every attention call of a model, watched and captured; files of captured tensors."""
