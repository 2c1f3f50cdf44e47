"""The watch over what a recorded program takes for granted."""
