"""What a topology deals in, and the rules of its values: ids, batches, tuples, schemas, options, errors."""
