"""Run ptxgen from a checkout, with nothing installed but its dependencies: `python cli.py emit --step 6`."""

from ptxgen.commands import main

if __name__ == "__main__":
    main()
