"""The values of a topology and the rules for them: ids, batches, tuples, schemas, options, errors.

All other rooms import from here; a module here imports from no other room.
"""
