"""`python -m bundle_router` is `bundle-router`."""

from bundle_router.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
