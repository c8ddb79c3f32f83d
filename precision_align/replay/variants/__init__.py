"""The reference's code with one of its operations done otherwise: guesses at what the candidate's code does."""
