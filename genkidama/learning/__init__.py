"""What learns: networks, losses, optimizers and environments, on torch and NumPy. Nothing here waits."""
