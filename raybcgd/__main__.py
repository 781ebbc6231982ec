"""`python -m raybcgd`, for where the package is sent rather than installed."""

from raybcgd.cli import main

if __name__ == "__main__":
    main()
