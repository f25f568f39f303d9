"""Rows again: what a curve is wanted for, learning rankers from clicks and judging them."""
