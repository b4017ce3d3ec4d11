"""`python -m transactional`: the command line."""

from transactional.operations.cli.main import main

if __name__ == "__main__":
    main()
