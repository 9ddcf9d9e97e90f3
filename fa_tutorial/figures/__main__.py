"""`python -m fa_tutorial.figures`: draw every image of the course."""

from fa_tutorial.figures import main

if __name__ == "__main__":
    main()
