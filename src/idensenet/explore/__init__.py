"""The live page of a trained model, and the server on this machine that answers its questions."""
