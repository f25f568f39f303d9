"""Learning to rank from corrected clicks, and offline evaluation of rankings."""
