"""What roles agree on before the first round: the handshake, its terms and size, who may take part, rows and labels."""
