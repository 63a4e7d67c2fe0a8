"""What learns: networks, heads, losses, optimizers and environments, on torch and NumPy.

A module here may build environments and step them, and compute on tensors that it is given. It
opens no file and no socket, starts no process, and waits for nobody. It knows nothing of parents
and children: where the tensors lie, and with whom they are shared, is the caller's business. `play`
alone is also a command, which reads a checkpoint: one process' share of an evaluation.
"""
