"""The records of a run, for people and for the next run: its journal, attempts, minutes and troubles, and the ports of
observers. Also the translation of recorded bolts and batches for a program that has changed.
"""
