"""One script a claim: each starts what it compares with in the same run, and prints ratios."""
