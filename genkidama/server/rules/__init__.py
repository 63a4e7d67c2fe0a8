"""Update rules: the ways in which a push changes the weights of the parent. Pure NumPy."""
