"""Signatures of questions: parameters, their kinds and texts, and checked values."""
