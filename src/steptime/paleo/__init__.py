"""Paleo as published (Qi, Sparks, Talwalkar, ICLR 2017): its layers and its rules."""
