"""From a configuration to a trained model: the loop, checkpoints, averaging, evaluation."""
