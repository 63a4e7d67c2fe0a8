"""Networks and losses of tensors: the user's own, convolutions, other devices, ONNX.

It needs the extra `torch`. Nothing below imports it: `genkidama.learning.model.Model` loads it
where an experiment needs it, and `genkidama` where a public name does.
"""
