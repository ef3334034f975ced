"""Documented experiments: each asks the models a question that somebody answered by measuring, and shows both answers.

Nothing in here may change a model, or choose a figure because it is near a measured one.
"""
