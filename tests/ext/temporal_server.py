"""Temporal's own server, as a process.

The SDK starts one too, but gives it five seconds: too few on a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from tests.ports import free_port

PROGRAM = shutil.which(
    "temporal", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
)


@asynccontextmanager
async def dev_server(**options: Any) -> AsyncIterator[Client]:
    """Start the server and yield a client with these options. Needs `PROGRAM`."""
    assert PROGRAM is not None
    address = f"127.0.0.1:{free_port()}"
    words = ("server", "start-dev", "--headless", "--log-level", "error", "--ip", "127.0.0.1")
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *words, "--port", address.partition(":")[2]
    )
    try:
        async with asyncio.timeout(300):
            while True:
                try:
                    client = await Client.connect(address, **options)
                    await client.workflow_service.describe_namespace(
                        DescribeNamespaceRequest(namespace="default")
                    )
                    break
                except (RPCError, RuntimeError):
                    assert process.returncode is None, "the server ended by itself"
                    await asyncio.sleep(0.1)
        yield client
    finally:
        process.terminate()
        await process.wait()
