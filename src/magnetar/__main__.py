"""`python -m magnetar`."""

from magnetar.cli import main

if __name__ == "__main__":
    main()
