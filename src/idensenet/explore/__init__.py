"""A live look at a trained model: a page on this machine, and the server that answers it."""
