"""Large artifacts in an object store: S3 and compatible services, other clouds, or a folder
(`file://`).

obstore is used rather than fsspec: it is one wheel without dependencies (s3fs needs aiobotocore and
botocore), its calls block as ours do, it has conditional puts, and its retries and timeouts can be
set here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from bundle_router.errors import StorageError, needs_extra

TIMEOUT: Final = timedelta(seconds=10)


class ObjectStore:
    """Objects under a URL such as `s3://bucket/prefix`, `gs://…`, `az://…` or `file:///folder`,
    named by their digest.

    Credentials, region and endpoint come from the environment variables of the cloud's own tools
    (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …).
    """

    def __init__(self, url: str) -> None:
        with needs_extra("an object store", "postgresql"):
            import obstore
            from obstore import store
        self._obstore: Any = obstore
        self.url = url
        parts = urlsplit(url)
        options: dict[str, Any] = {}
        if parts.scheme == "file":
            os.makedirs(parts.path, mode=0o700, exist_ok=True)  # noqa: PTH103 - obstore takes text
        else:
            plain = os.environ.get(
                "AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", "")
            ).startswith("http://")
            options["client_options"] = {
                "timeout": TIMEOUT,
                "connect_timeout": timedelta(seconds=3),
                "allow_http": plain,
            }
            options["retry_config"] = {"max_retries": 2, "retry_timeout": TIMEOUT}
        try:
            self._store: Any = store.from_url(url, **options)
        except Exception as error:  # noqa: BLE001 - the boundary to a library that raises its own and ValueError
            raise self._storage_error("open", error) from None

    def put(self, sha256: str, data: bytes) -> None:
        """Store the bytes under their digest, unless they exist. Raises StorageError."""
        with suppress(self._obstore.exceptions.AlreadyExistsError):
            try:
                self._obstore.put(self._store, self._path(sha256), data, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                raise
            except Exception as error:  # noqa: BLE001 - same
                raise self._storage_error(f"store artifact {sha256} in", error) from None

    def get(self, sha256: str) -> bytes:
        """Return the bytes. Raises KeyError, StorageError."""
        try:
            return bytes(self._obstore.get(self._store, self._path(sha256)).bytes())
        except (self._obstore.exceptions.NotFoundError, FileNotFoundError):
            raise KeyError(sha256) from None
        except Exception as error:  # noqa: BLE001 - same
            raise self._storage_error(f"read artifact {sha256} from", error) from None

    def delete(self, sha256: str) -> None:
        """Delete the object if it exists. Raises StorageError."""
        try:
            self._obstore.delete(self._store, self._path(sha256))
        except (self._obstore.exceptions.NotFoundError, FileNotFoundError):
            return
        except Exception as error:  # noqa: BLE001 - same
            raise self._storage_error(f"delete artifact {sha256} from", error) from None

    @staticmethod
    def _path(sha256: str) -> str:
        return f"sha256/{sha256[:2]}/{sha256}"

    def _storage_error(self, doing: str, error: Exception) -> StorageError:
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        return StorageError(
            f"can't {doing} {self.url}: {first}",
            kind="unreachable",
            advice="check that the object store can be reached, and its credentials",
        )
