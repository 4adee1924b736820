"""`python -m bundle_router_deferral` is `bundle-router-deferral`."""

from bundle_router_deferral.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
