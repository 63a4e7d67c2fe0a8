"""LunarLander by federated averaging: in each round every machine learns from its own batches."""
