"""`python -m transactional`: the command line."""

from transactional.commands.main import main

if __name__ == "__main__":
    main()
