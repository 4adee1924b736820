"""`python -m router` is `bundle-router`."""

from router.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
