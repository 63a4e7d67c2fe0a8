"""Networks, heads, losses, optimizers and environments, on torch and NumPy.

A module here may build environments and step them, and compute on tensors that it is given. It
opens no file and no socket, starts no process, and never waits. It knows nothing of parents and
children: the caller provides the tensors' memory, and decides who shares it.
"""
