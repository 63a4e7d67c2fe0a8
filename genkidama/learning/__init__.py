"""Networks, heads, losses, optimizers and environments, on torch and NumPy.

A module here may build environments and step them, and compute on tensors that it is given. It
opens no file and no socket, starts no process, and waits for nobody. It knows nothing of parents
and children: the tensors' memory, and whoever shares it, are the caller's business.
"""
