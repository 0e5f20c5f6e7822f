"""Training: the loop around a program that is forward, backward and step at once."""
